"""Decode rows that ask for more than a token, on a device: whatever rows come and go between two steps, in any order,
each text is what it is alone, and what samplers carry goes with them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch

from ahead_rig import row_results
from device_rig import device_rig
from loopwright.core.batch import ENTROPY, Batch, DecodeRows, ForwardRow, StepResult
from loopwright.core.calls import Sampling
from loopwright.core.samplers import SamplerRun, SamplerState
from loopwright.engine.cuda.answers import Answers
from loopwright.engine.cuda.decode_asks import DecodedStates
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.cuda.traced_graphs import TracedSamplers
from loopwright.sdk import tensor
from runner_rig import Rig, some_tokens
from sampler_rig import SAMPLERS, STATES, initial, traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwright.core.batch import RowResult
    from loopwright.engine.loaded_model import LoadedModel

HOT = Sampling(temperature=1.0, seed=5)
NUM_TEXTS = 8


def sampler(name: str) -> SamplerRun:
    return SamplerRun(traced(SAMPLERS[name], STATES.get(name)), initial(STATES.get(name)))


@dataclass
class Text:
    """One text and what its rows ask for; `states` [number of tokens] are what its sampler has left."""

    prompt: list[int]
    table: list[int]
    sampling: Sampling
    sampler: SamplerRun | None
    is_unsure: bool
    tokens: list[int] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    tops: list[list[int]] = field(default_factory=list)
    state: SamplerState | None = None

    def take(self, result: RowResult) -> None:
        assert result.error is None, result.error
        self.tokens.append(result.sampled[0].token_id)
        self.tops.append([token for token, _ in result.sampled[0].top_logprobs])
        self.entropies += [one.entropy for one in result.distributions]
        self.state = result.sampler_state

    def last(self) -> object:
        return None if self.state is None else self.state.values()


def texts_of(rig: Rig) -> list[Text]:
    """Of each pair of samplers several, so that groups are parted and put together."""
    presence, mirostat = sampler("presence"), sampler("mirostat")
    kinds = [
        (HOT, presence, False), (Sampling(), mirostat, True), (Sampling(), presence, False), (HOT, None, False),
        (Sampling(top_logprobs=3, frequency_penalty=0.7, **{"temperature": 1.0, "seed": 2}), None, True),
        (Sampling(top_logprobs=2, logit_bias={9: 3.0}, repetition_penalty=1.4), mirostat, False),
        (HOT, presence, True),
        (Sampling(top_logprobs=2, logprobs="processed", top_p=0.8, temperature=1.0), None, False),
    ]  # fmt: skip
    return [
        Text(some_tokens(9 + 2 * place, place), rig.blocks(64), *kind) for place, kind in enumerate(kinds[:NUM_TEXTS])
    ]


class Again:
    """A captured function where nothing captures: what it finds lies where it lay the first time."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run, self.found = run, run()

    def replay(self) -> Any:
        now = self._run()
        if isinstance(now, torch.Tensor):
            return self.found.copy_(now)
        for name in ("scores", "told", "chosen"):
            if (tensor := getattr(now, name)) is not None:
                getattr(self.found, name).copy_(tensor)
        for name, one in now.states.items():
            self.found.states[name].copy_(one.clone())
        return self.found


def with_graphs(rig: Rig) -> Rig:
    """A rig whose steps and samplers are graphs, as far as anybody can tell."""
    runner = rig.runner
    assert isinstance(runner, DeviceRunner)
    steps = runner._steps
    for size in steps._sizes:
        with torch.inference_mode():
            steps._graphs[size] = Again(partial(steps._decoder.decode, steps.buffers, size))
            steps._greedy[size] = Again(partial(steps._decode_greedily, size))
    runner._ways = replace(runner._ways, samplers=TracedSamplers(Again))
    return rig


def prefill(rig: Rig, texts: list[Text]) -> None:
    rows = [
        ForwardRow(
            one.table, 0, range(len(one.prompt)), one.prompt, sampling=one.sampling, sample_position=len(one.prompt),
            sampler=one.sampler, distributions=[ENTROPY] if one.is_unsure else [],
        )
        for one in texts
    ]  # fmt: skip
    for one, result in zip(texts, rig.step(Batch(rows=rows)).rows, strict=True):
        one.take(result)


def decode(texts: list[Text], before: list[Text] | None, had: DecodeRows | None = None) -> DecodeRows:
    """The next step of these; `before` are those of the step that runs, if one does, and `had` its rows."""
    if had is not None and texts is before:  # as control has it: the very same columns
        num = len(texts)
        return msgspec.structs.replace(
            had, token_ids=[0] * num, num_steps=had.num_steps + 1, sources=range(num), states=()
        )
    sources = [] if before is None else [before.index(one) if one in before else -1 for one in texts]
    nums = [len(one.tokens) + (before is not None and one in before) for one in texts]
    lens = [len(one.prompt) + num - 1 for one, num in zip(texts, nums, strict=True)]
    alone = [-1] * len(texts)
    is_same = before is not None and sources == list(range(len(before)))
    return DecodeRows(
        [one.table for one in texts], lens, lens, [one.sampling for one in texts],
        [one.tokens if one.sampling.has_penalties else () for one in texts],
        [0 if source >= 0 else one.tokens[-1] for one, source in zip(texts, sources or alone, strict=True)],
        0, [num - 1 for num in nums], range(len(texts)) if is_same else sources,
        [one.sampler for one in texts], [one.state for one in texts],
        [place for place, one in enumerate(texts) if one.is_unsure],
    )  # fmt: skip


def taken(texts: list[Text], rows: DecodeRows, result: StepResult) -> None:
    for one, mine in zip(texts, row_results(result, rows.samplings, rows.unsure), strict=True):
        one.take(mine)


def check(found: list[Text], expected: list[Text]) -> None:
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.tokens == other.tokens, place
        assert one.tops == other.tops, place
        np.testing.assert_allclose(one.entropies, other.entropies, atol=1e-4)
        mine, theirs = one.last(), other.last()
        if not isinstance(theirs, dict):
            assert mine is None
            continue
        for name, value in theirs.items():
            if isinstance(value, bytes):
                np.testing.assert_allclose(np.frombuffer(mine[name]), np.frombuffer(value), atol=1e-3)
            else:
                assert mine[name] == pytest.approx(value, abs=1e-3)


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[Text]:
    """Each alone, by the model runner."""
    rig = Rig(model, num_blocks=256)
    texts = texts_of(rig)
    for one in texts:
        prefill(rig, [one])
        for _ in range(16):
            rows = decode([one], None)
            taken([one], rows, rig.step(Batch(decodes=rows)))
    return texts


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_come_and_go_are_what_they_are_alone(
    seed: int, is_ahead: bool, model: LoadedModel, expected: list[Text], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `seed` 3 each row has a copy of what it carries."""
    if seed == 3:
        monkeypatch.setattr("loopwright.engine.cuda.traced_rows._MAX_SHARED_BYTES", 100)
    rig = device_rig(model, num_blocks=256)
    texts = texts_of(rig)
    come_and_go(rig, texts, random.Random(seed), is_ahead=is_ahead)
    check(texts, expected)


@pytest.mark.parametrize("name", ["mirostat", "plain_draw", "swapped"])
@pytest.mark.parametrize("seed", range(2))
def test_a_step_whose_rows_have_one_sampler_is_what_they_are_alone(
    name: str, seed: int, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its graph reads logits where they are and puts tokens where the next step looks."""
    function = {"swapped": swapped}.get(name) or SAMPLERS[name]
    state = {"one": 1.0, "other": 0.0} if name == "swapped" else STATES.get(name)
    run = SamplerRun(traced(function, state), initial(state))
    found = []
    num_put = 0
    answers_init = Answers.__init__

    def counting(self: Answers, *args: Any) -> None:
        nonlocal num_put
        answers_init(self, *args)
        num_put += self.is_put

    monkeypatch.setattr(Answers, "__init__", counting)
    for rig in (Rig(model, num_blocks=256), with_graphs(device_rig(model, num_blocks=256))):
        texts = [
            Text(some_tokens(9 + place, place), rig.blocks(64), replace_seed(HOT, place), run, place % 3 == 0)
            for place in range(6)
        ]
        found.append(texts)
        prefill(rig, texts)
        if len(found) == 1:
            for one in texts:
                for _ in range(16):
                    rows = decode([one], None)
                    taken([one], rows, rig.step(Batch(decodes=rows)))
        else:
            come_and_go(rig, texts, random.Random(seed), is_ahead=True, is_begun=True)
    check(*reversed(found))
    assert num_put > 10


def test_what_was_left_for_other_rows_is_not_taken_as_it_lies() -> None:
    """Rows of the same sampler, in another order or number: each finds its own by its place."""
    graph = sampler("mirostat").graph
    mine, others = (SimpleNamespace(graph=graph) for _ in range(2))
    columns = {"mu": torch.tensor([1.0, 2.0])}
    for is_apart in (False, True):
        left = {graph: SimpleNamespace(columns=columns, asks=mine, is_apart=is_apart)}
        states = DecodedStates(SimpleNamespace(numbers={}), SimpleNamespace(left=left), 2)  # type: ignore[arg-type]
        assert states.whole(mine) is (None if is_apart else columns)  # type: ignore[arg-type]
        assert states.whole(others) is None  # type: ignore[arg-type]


def swapped(scores: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What two states are changes places with each token, of which one counts the other's."""
    token = tensor.argmax(scores - 40 * state["one"] * tensor.one_hot(tensor.argmax(scores)))
    return token, {"one": state["other"], "other": state["one"]}


def replace_seed(sampling: Sampling, seed: int) -> Sampling:
    return msgspec.structs.replace(sampling, seed=seed)


def come_and_go(rig: Rig, texts: list[Text], rng: random.Random, *, is_ahead: bool, is_begun: bool = False) -> None:
    """Until each text has 17 tokens: some of them a step, in any order, or those of the step before."""
    if not is_begun:
        prefill(rig, texts)
    before: list[Text] | None = None
    running: list[tuple[list[Text], DecodeRows, Any]] = []
    while any(len(one.tokens) < 17 for one in texts) or running:
        under_way = before or []
        left = [one for one in texts if len(one.tokens) + (one in under_way) < 17]
        chosen = left
        if rng.random() < 0.6 and before and all(one in left for one in before):
            chosen = before  # the very same rows
        elif chosen:
            chosen = rng.sample(chosen, rng.randint(1, len(chosen)))
        if chosen:
            rows = decode(chosen, before, had=running[-1][1] if running else None)
            with torch.inference_mode():
                running.append((chosen, rows, rig.runner.launch(Batch(decodes=rows))))
        if running and (len(running) == 2 or not is_ahead or not chosen):
            mine, had, launched = running.pop(0)
            taken(mine, had, launched.result())
        before = running[-1][0] if running else None


def test_a_row_that_asks_what_cannot_be_fails_alone_in_every_step(model: LoadedModel) -> None:
    rig = device_rig(model)
    texts = texts_of(rig)[:3]
    prefill(rig, texts)
    texts[1].sampling = Sampling(logit_bias={9999: 1.0})
    for _ in range(2):
        rows = decode(texts, None)
        found = row_results(rig.step(Batch(decodes=rows)), rows.samplings, rows.unsure)
        assert [one.error is None for one in found] == [True, False, True]
        assert "logit_bias" in found[1].error.message
        assert [len(one.sampled) for one in found] == [1, 0, 1]


def test_a_sampler_that_fails_fails_its_row_and_those_that_name_it(model: LoadedModel) -> None:
    rig = device_rig(model)
    wrong = SamplerRun(traced(lambda scores: scores[5] * 0 + 999.5), {})
    texts = texts_of(rig)[:2]
    prefill(rig, texts)
    texts[0].sampler, texts[0].state = wrong, None
    first = decode(texts, None)
    later = decode(texts, texts)
    with torch.inference_mode():
        launched = [rig.runner.launch(Batch(decodes=rows)) for rows in (first, later)]
    for rows, one in zip((first, later), launched, strict=True):
        found = row_results(one.result(), rows.samplings, rows.unsure)
        assert found[0].error is not None
        assert found[1].error is None
    failed = row_results(launched[0].result(), first.samplings, first.unsure)[0].error
    assert failed is not None
    assert "999.5 is not a token id" in failed.message
