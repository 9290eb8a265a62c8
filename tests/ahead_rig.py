"""Rows of every kind that go on step after step, each launched before the one before it is read. Knows no device.

`Kinds` sends what control sends: segments as decode rows, with what they ask for beside a token; those under a grammar,
and programs that look at every token, as rows that name their source.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from msgspec.structs import replace

from loopwright.core.batch import ENTROPY, Batch, DecodeRows, ForwardRow, RowResult, Sampled, StepResult
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.late_bits import LateBits
from loopwright.core.results import Distribution
from loopwright.core.samplers import SamplerRun, SamplerState
from loopwright.engine.carried import fed
from runner_rig import Rig, some_tokens
from sampler_rig import SAMPLERS, STATES, initial, traced

HOT = {"temperature": 1.0, "seed": 7}
_SAMPLED = {name: SamplerRun(traced(SAMPLERS[name], STATES.get(name)), initial(STATES.get(name))) for name in SAMPLERS}
_SAMPLED["penalties, a sampler and top_logprobs"] = _SAMPLED["mirostat"]
_PENALIZED = Sampling(frequency_penalty=0.6, repetition_penalty=1.2, logit_bias={7: 2.0}, **HOT)
DECODING = {
    "greedy": Sampling(),
    "temperature": Sampling(**HOT),
    "top_k": Sampling(top_k=9, logprobs="processed", **HOT),
    "top_p": Sampling(top_p=0.8, **HOT),
    "min_p": Sampling(min_p=0.03, temperature=1.4, seed=3),
    "penalties": Sampling(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, **HOT),
    "typical_p": Sampling(typical_p=0.7, **HOT),
    "bias and a list": Sampling(logit_bias={5: 4.0}, allowed=(3, 5, 7, 200), **HOT),
    "a large top_k": Sampling(top_k=2000, top_p=0.95, **HOT),
    "entropy": Sampling(),
    "top_logprobs": Sampling(top_logprobs=4, **HOT),
    "processed top_logprobs": Sampling(top_logprobs=4, logprobs="processed", top_p=0.9, **HOT),
    "penalties, entropy and top_logprobs": replace(_PENALIZED, top_logprobs=3),
    "penalties, a sampler and top_logprobs": replace(_PENALIZED, top_logprobs=2),
} | {f"sampler {name}": Sampling() for name in SAMPLERS}
_FIFTHS = bytes(0b10000100 if place % 5 else 0b00100001 for place in range(33))
SINGLE: dict[str, dict[str, object]] = {
    "the 256 likeliest": {"distributions": [DistributionRequest()]},
    "all of a distribution": {
        "distributions": [
            DistributionRequest(k=3, must_include=(200, 4), ranks=True, logits=True),
            DistributionRequest(k=9, allowed=(1, 2, 77, 9), must_include=(5,), entropy=True),
        ]
    },
    "bits": {"allowed_bits": _FIFTHS, "sampling": Sampling(presence_penalty=1.0, **HOT)},
    "a row of its own": {},
    "a sampler with bits": {"sampler": _SAMPLED["presence"], "allowed_bits": _FIFTHS},
}
NAMES = (*DECODING, *SINGLE)


class Kinds:
    """A text of each kind, or of those named, over a rig."""

    def __init__(self, rig: Rig, names: Sequence[str] = NAMES) -> None:
        self._rig = rig
        self._prompts = {name: some_tokens(10 + 3 * place, place) for place, name in enumerate(names)}
        self._tables = {name: rig.blocks(len(prompt)) for name, prompt in self._prompts.items()}
        self._decoding = [name for name in names if name in DECODING]
        self._single = [name for name in names if name in SINGLE]
        self._samplings = [DECODING[name] for name in self._decoding]  # the very same list, as control has it
        self._lists = [self._tables[name] for name in self._decoding]
        self._lengths = [len(self._prompts[name]) for name in self._decoding]
        self._samplers = [_SAMPLED.get(name.removeprefix("sampler ")) for name in self._decoding]
        self._unsure = [place for place, name in enumerate(self._decoding) if "entropy" in name]
        self._states: Sequence[SamplerState | None] = ()
        self._generated: list[list[int]] = [[] for _ in self._decoding]
        self._own: dict[str, list[int]] = {name: [] for name in names}  # tokens that have been read
        self._results: list[list[RowResult]] = []

    def run(
        self,
        num_steps: int,
        *,
        is_ahead: bool,
        launching: Callable[[], AbstractContextManager[object]] = nullcontext,
        first_watched: int = 0,
    ) -> list[list[RowResult]]:
        """Of each step, the first are the prompts, what each text got in the order of the names. `launching` is around
        every launch from step `first_watched` on."""
        runner, waiting = self._rig.runner, []
        for number in range(num_steps):
            batch = self._prefill() if not number else self._step(number, is_ahead=is_ahead)
            with torch.inference_mode():
                if not is_ahead:
                    self._take(runner.run(batch))
                    continue
                with launching() if number >= first_watched else nullcontext():
                    waiting.append(runner.launch(batch))
            if len(waiting) == 2:
                self._take(waiting.pop(0).result())
        for one in waiting:
            self._take(one.result())
        return self._results

    def _prefill(self) -> Batch:
        rows = []
        for name in (*self._decoding, *self._single):
            prompt = self._prompts[name]
            fields = {"sampling": DECODING.get(name, Sampling()), **SINGLE.get(name, {})}
            if name in DECODING:
                fields |= {"sampler": _SAMPLED.get(name.removeprefix("sampler "))}
                fields |= {"distributions": [ENTROPY] if "entropy" in name else []}
            rows.append(
                ForwardRow(self._tables[name], 0, range(len(prompt)), prompt, sample_position=len(prompt), **fields)
            )
        return Batch(rows=rows)

    def _step(self, number: int, *, is_ahead: bool) -> Batch:
        for name, table in self._tables.items():
            if len(self._prompts[name]) + number > 16 * len(table):
                table += self._rig.blocks(1)
        num = len(self._decoding)
        tokens = [0] * num if is_ahead else [one[-1] for one in self._generated]
        generated = [
            written if one.has_penalties else () for one, written in zip(self._samplings, self._generated, strict=True)
        ]
        decodes = DecodeRows(
            self._lists, self._lengths, self._lengths, self._samplings, generated, tokens, number - 1, [0] * num,
            range(num) if is_ahead else (), self._samplers if any(self._samplers) else (),
            () if is_ahead else self._states, self._unsure,
        )  # fmt: skip
        return Batch(decodes=decodes, rows=list(self._singles(number, is_ahead=is_ahead)))

    def _singles(self, number: int, *, is_ahead: bool) -> Iterator[ForwardRow]:
        for place, name in enumerate(self._single, start=len(self._decoding)):
            position = len(self._prompts[name]) + number - 1
            fields = {"sampling": Sampling(), **SINGLE[name]}
            known = self._own[name]
            row = ForwardRow(
                self._tables[name], position, [position], [0], sample_position=position + 1, source=place,
                generated=known[:number - 1], **fields,
            )  # fmt: skip
            if row.allowed_bits is not None:  # as control sends what follows from the source's token
                late = LateBits()
                late.give(row.allowed_bits)
                row = replace(row, allowed_bits=None, late_bits=late)
            yield row if is_ahead else replace(fed(row, self._results[-1][place]), source=-1)

    def _take(self, result: StepResult) -> None:
        results = [*row_results(result, self._samplings, self._unsure), *result.rows]
        self._results.append(results)
        self._states = result.decodes.states or [one.sampler_state for one in results[: len(self._decoding)]]
        for place, (name, one) in enumerate(zip(self._own, results, strict=True)):
            assert one.error is None, (name, one.error)
            if place < len(self._decoding):
                self._generated[place].append(one.sampled[0].token_id)
            self._own[name].append(one.sampled[0].token_id)


def row_results(result: StepResult, samplings: Sequence[Sampling], unsure: Sequence[int]) -> list[RowResult]:
    """What came of the decode rows, row by row. Of distributions there is the entropy alone."""
    decodes = result.decodes
    if not decodes.token_ids:
        return []
    listing = [row for row, one in enumerate(samplings) if one.top_logprobs]
    tops = dict(zip(listing, decodes.tops, strict=True))
    entropies = dict(zip(unsure, decodes.entropies, strict=True))
    return [
        RowResult(error=decodes.errors[row]) if row in decodes.errors
        else RowResult(
            (Sampled(token, logprob, tops.get(row, ())),),
            [_with_entropy(entropies[row])] if row in entropies else (),
            sampler_state=decodes.states[row] if decodes.states else None,
        )
        for row, (token, logprob) in enumerate(zip(decodes.token_ids, decodes.logprobs, strict=True))
    ]  # fmt: skip


def _with_entropy(entropy: float) -> Distribution:
    return Distribution(ids=b"", logprobs=b"", covered=0.0, tail_mass=0.0, truncated=True, entropy=entropy)
