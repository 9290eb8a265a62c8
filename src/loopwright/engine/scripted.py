"""An executor without a model: the next token is a function of the tokens read back through the page table. No torch.

Used by tests of everything above the engine. It keeps the token of every KV place, so a wrong block, a lost copy or a
block written by two shows as a wrong token or as an error, and it records batches, so that tests can ask about them.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loopwright.core.batch import Batch, ForwardRow, HeadRow, RowResult, Sampled, StepResult
from loopwright.core.calls import DistributionRequest, Sampling, Visibility
from loopwright.core.errors import BadRequest, InternalError, LoopwrightError
from loopwright.core.executor import EngineShape, StepsAhead
from loopwright.core.results import Distribution
from loopwright.core.samplers import SamplerRun
from loopwright.engine.carried import Carried
from loopwright.engine.row_checks import check_head, check_row, check_step
from loopwright.engine.scripted_samplers import run_sampler
from loopwright.engine.step_thread import StepThread

_Row = TypeVar("_Row", ForwardRow, HeadRow)
History: TypeAlias = tuple[int, ...]
NextToken: TypeAlias = Callable[[History], int]

_FORCED_LOGIT = 10.0  # of the next token; every other has 0


def hashed_token(vocab_size: int = 256) -> NextToken:
    """The default: a token that depends on every token of the history and on their order."""

    def next_token(history: History) -> int:
        state = 17
        for token_id in history:
            state = (state * 1_000_003 + token_id + 1) % 2_147_483_647
        return state % vocab_size

    return next_token


def scripted_tokens(scripts: Mapping[History, Sequence[int]], end: int) -> NextToken:
    """Each prompt is followed by its tokens, then by `end` for ever. The longest prompt that fits counts."""

    def next_token(history: History) -> int:
        prompts = [prompt for prompt in scripts if history[: len(prompt)] == tuple(prompt)]
        if not prompts:
            raise InternalError(f"no script starts like {history[:16]}")
        prompt = max(prompts, key=len)
        num_done = len(history) - len(prompt)
        return scripts[prompt][num_done] if num_done < len(scripts[prompt]) else end

    return next_token


@dataclass(frozen=True, slots=True)
class _State:
    """What stands in for a hidden vector: the visible tokens up to and including its own."""

    history: History
    position: int


class ScriptedExecutor:
    """Implements core.executor.Executor."""

    def __init__(
        self,
        next_token: NextToken | None = None,
        *,
        vocab_size: int = 260,
        num_blocks: int = 256,
        num_slots: int = 256,
        max_context: int = 4096,
        block_size: int = 16,
        steps_ahead: StepsAhead = "possible",
    ) -> None:
        self.batches: list[Batch] = []  # every batch submitted, in order
        self._next_token = next_token or hashed_token()
        self._shape = EngineShape(vocab_size, max_context, block_size, num_blocks, num_slots, 0, steps_ahead)
        self._carried = Carried()
        self._tokens: list[int | None] = [None] * (num_blocks * block_size)  # by place; None was never written
        self._slots: dict[int, _State] = {}
        self._may_run = threading.Event()
        self._may_run.set()
        self._thread = StepThread("loopwright-scripted", self._run, nullcontext)

    @property
    def shape(self) -> EngineShape:
        return self._shape

    @property
    def mean_rows(self) -> float:
        """Forward rows a batch that has any."""
        sizes = [batch.num_rows for batch in self.batches if batch.num_rows]
        return sum(sizes) / len(sizes) if sizes else 0.0

    def submit(self, batch: Batch) -> Future[StepResult]:
        future = self._thread.submit(batch)
        self.batches.append(batch)
        return future

    def hold(self) -> None:
        """From now on batches wait. One that is running may still finish."""
        self._may_run.clear()

    def release(self) -> None:
        """Lets all waiting batches run, and those after them."""
        self._may_run.set()

    def close(self) -> None:
        self.release()
        self._thread.close()

    def tokens_of(self, block_ids: Sequence[int], kv_len: int) -> tuple[int | None, ...]:
        """What a page table holds; for tests."""
        return tuple(self._tokens[self._place(block_ids, index)] for index in range(kv_len))

    def _run(self, batch: Batch) -> StepResult:
        self._may_run.wait()
        rows = self._carried.rows(batch)
        check_step(batch, self._shape)
        self._copy(batch)
        for embed in batch.embeds:
            for token_id, position, slot in zip(embed.token_ids, embed.positions, embed.slots, strict=True):
                self._slots[slot] = _State((token_id,), position)
        results = tuple(_guarded(self._run_row, row) for row in rows)
        self._carried.keep(results)
        return StepResult.of_all_rows(
            batch,
            results,
            tuple(_guarded(self._run_head, head) for head in batch.heads),
            tuple(RowResult() for _ in batch.shifts),  # a history knows no positions
        )

    def _copy(self, batch: Batch) -> None:
        size = self._shape.block_size
        moved = [
            (copy.target * size + copy.target_offset + i, self._tokens[copy.source * size + copy.source_offset + i])
            for copy in batch.copies
            for i in range(copy.size)
        ]
        for place, token_id in moved:
            self._tokens[place] = token_id

    def _run_row(self, row: ForwardRow) -> RowResult:
        check_row(row, self._shape)
        inputs = [_State((token_id,), at) for token_id, at in zip(row.token_ids, row.positions, strict=False)]
        inputs = inputs or [self._slot(slot) for slot in row.input_slots]
        for index, one in enumerate(inputs):
            self._tokens[self._place(row.block_ids, row.kv_len + index)] = one.history[-1]
        states = [
            _State(self._visible(row, index), inputs[index].position) for index in range(row.num_tokens)
        ]  # fmt: skip
        for slot, state in zip(reversed(row.output_slots), reversed(states), strict=False):
            self._slots[slot] = state
        drafts = row.token_ids[row.num_tokens - row.num_drafts :]
        allowed: list[tuple[int, ...] | None] = [(one,) if row.are_drafts_forced else None for one in drafts]
        allowed.append(None if row.allowed_bits is None else _ids_of_bits(row.allowed_bits))
        if row.sampler is not None and row.sampling is not None:
            return self._answer_sampler(states, row, row.sampler, row.sampling, allowed[-1])
        return self._answer(states, row.distributions, row.sampling, drafts, allowed)

    def _answer_sampler(
        self,
        states: Sequence[_State],
        row: ForwardRow,
        sampler: SamplerRun,
        sampling: Sampling,
        allowed: tuple[int, ...] | None,
    ) -> RowResult:
        """The sampler sees the logits after bias and mask; of scores that it returns, the highest is taken."""
        logits = self._logits(states[-1])
        masked = sampling if allowed is None else msgspec.structs.replace(sampling, allowed=allowed)
        scores = _masked(_biased(logits, masked), masked)
        result, state = run_sampler(sampler, scores.tolist(), sampling.seed, row.sample_position)
        chosen = int(_masked(np.array(result), masked).argmax()) if isinstance(result, list) else result
        if not (0 <= chosen < len(logits) and chosen == int(chosen) and scores[int(chosen)] > -np.inf):
            raise BadRequest(
                f"sampler, at position {row.sample_position}: token {chosen:g} may not be", field="sampler"
            )
        plain = self._answer(states, row.distributions, None)
        only = msgspec.structs.replace(sampling, allowed=(int(chosen),))
        return RowResult((_sample(logits, only),), plain.distributions, sampler_state=state)

    def _run_head(self, head: HeadRow) -> RowResult:
        check_head(head, self._shape)
        return self._answer([self._slot(head.slot)], head.distributions, head.sampling)

    def _slot(self, slot: int) -> _State:
        if slot not in self._slots:
            raise InternalError(f"slot {slot} was read but never written")
        return self._slots[slot]

    def _visible(self, row: ForwardRow, index: int) -> History:
        """The tokens that new token `index` sees, read back through the page table."""
        is_seen = _expand(row.mask[index]) if row.mask is not None else [True] * (row.kv_len + index + 1)
        history: list[int] = []
        for place_index in (i for i, seen in enumerate(is_seen) if seen):
            token_id = self._tokens[self._place(row.block_ids, place_index)]
            if token_id is None:
                raise InternalError(f"place {place_index} of blocks {list(row.block_ids)} was read but never written")
            history.append(token_id)
        return tuple(history)

    def _place(self, block_ids: Sequence[int], index: int) -> int:
        size = self._shape.block_size
        return block_ids[index // size] * size + index % size

    def _answer(
        self,
        states: Sequence[_State],
        requests: Sequence[DistributionRequest],
        sampling: Sampling | None,
        drafts: Sequence[int] = (),
        allowed: Sequence[tuple[int, ...] | None] = (None,),  # for each draft, and for the token after them
    ) -> RowResult:
        distributions = tuple(_distribution(self._logits(states[one.index]), one) for one in requests)
        sampled: list[Sampled] = []
        if sampling is not None:
            for number, state in enumerate(states[len(states) - 1 - len(drafts) :]):
                ids = allowed[number]
                masked = sampling if ids is None else msgspec.structs.replace(sampling, allowed=ids)
                sampled.append(_sample(self._logits(state), masked))
                if number < len(drafts) and drafts[number] != sampled[-1].token_id:
                    break
        return RowResult(tuple(sampled), distributions)

    def _logits(self, state: _State) -> NDArray[np.float64]:
        logits = np.zeros(self._shape.vocab_size)
        logits[self._next_token(state.history)] = _FORCED_LOGIT
        return logits


def _guarded(run: Callable[[_Row], RowResult], row: _Row) -> RowResult:
    try:
        return run(row)
    except LoopwrightError as error:
        return RowResult(error=error.info())


def _expand(runs: Visibility) -> list[bool]:
    return [index % 2 == 1 for index, length in enumerate(runs) for _ in range(length)]


def _ids_of_bits(bits: bytes) -> tuple[int, ...]:
    return tuple(np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")).tolist())


def _sample(logits: NDArray[np.float64], sampling: Sampling) -> Sampled:
    token_id, logprobs = _choose(logits, sampling), _logprobs(logits)
    if sampling.logprobs == "processed":
        return Sampled(token_id, 0.0, ((token_id, 0.0),) if sampling.top_logprobs else ())
    top = np.argsort(-logprobs, kind="stable")[: sampling.top_logprobs].tolist()
    return Sampled(token_id, float(logprobs[token_id]), tuple((one, float(logprobs[one])) for one in top))


def _choose(logits: NDArray[np.float64], sampling: Sampling) -> int:
    """The highest logit after bias and allowed; penalties, temperature and filters do not count here."""
    return int(_masked(_biased(logits, sampling), sampling).argmax())


def _biased(logits: NDArray[np.float64], sampling: Sampling) -> NDArray[np.float64]:
    biased = logits.copy()
    for token_id, bias in sampling.logit_bias.items():
        biased[token_id] += bias
    return biased


def _masked(logits: NDArray[np.float64], sampling: Sampling) -> NDArray[np.float64]:
    if sampling.allowed is None:
        return logits
    allowed = sorted(one for one in set(sampling.allowed) if one < len(logits))
    masked = np.full_like(logits, -np.inf)
    masked[allowed] = logits[allowed]
    return masked


def _distribution(logits: NDArray[np.float64], request: DistributionRequest) -> Distribution:
    masked, num_possible = logits, len(logits)
    if request.allowed is not None:
        allowed = sorted(set(request.allowed))
        masked, num_possible = np.full_like(logits, -np.inf), len(allowed)
        masked[allowed] = logits[allowed]
    logprobs = _logprobs(masked)
    probabilities = np.exp(logprobs)
    token_ids = np.argsort(-logprobs, kind="stable")[: min(request.k, num_possible)].tolist()
    token_ids += [one for one in dict.fromkeys(request.must_include) if one not in token_ids]
    covered = min(1.0, float(probabilities[token_ids].sum()))
    return Distribution(
        ids=np.array(token_ids, "<i4").tobytes(),
        logprobs=logprobs[token_ids].astype("<f4").tobytes(),
        covered=covered,
        tail_mass=1.0 - covered,
        truncated=int(np.isfinite(logprobs[token_ids]).sum()) < num_possible,
        entropy=-float((probabilities * np.where(probabilities > 0, logprobs, 0)).sum()) if request.entropy else None,
        allowed_mass=None if request.allowed is None else float(np.exp(_logprobs(logits))[allowed].sum()),
        logits=logits.astype("<f4").tobytes() if request.logits else None,
        ranks=(np.argsort(np.argsort(-logprobs, kind="stable"))[token_ids] + 1).astype("<i4").tobytes()
        if request.ranks
        else None,
    )


def _logprobs(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    normalized: NDArray[np.float64] = logits - np.logaddexp.reduce(logits)
    return normalized
