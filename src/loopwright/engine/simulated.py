"""A device that only takes time: every batch succeeds after what its step costs. No torch, no thread, no real waiting.

Made by compose on an event loop, mostly one of virtual time. Tokens are ids without meaning, so what it is good for is
the study of control: who waits for whom, and how large the batches are.
"""

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from loopwright.core.batch import Batch, DecodeResult, DecodeRows, ForwardRow, HeadRow, RowResult, Sampled, StepResult
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.executor import EngineShape
from loopwright.core.results import Distribution
from loopwright.core.samplers import SamplerRun, SamplerState, StateValue
from loopwright.core.step_costs import StepCosts

FIRST_TOKEN = 1  # sampled wherever it is allowed, if nobody says which


class SimulatedExecutor:
    """Implements core.executor.Executor. `call_later(seconds, callback)` is how time passes: that of an event loop."""

    def __init__(
        self, shape: EngineShape, costs: StepCosts, call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self.num_steps = 0
        self.num_rows = 0
        self.busy_s = 0.0
        self._shape = shape
        self._costs = costs
        self._call_later = call_later
        self._waiting: deque[tuple[Batch, Future[StepResult]]] = deque()  # the first one is running

    @property
    def shape(self) -> EngineShape:
        return self._shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        self._waiting.append((batch, future))
        if len(self._waiting) == 1:
            self._start()
        return future

    def close(self) -> None:
        """Nothing is held."""

    def _start(self) -> None:
        batch, _ = self._waiting[0]
        cost_s = self._costs.step_s(batch)
        self.num_steps += 1
        self.num_rows += batch.num_rows
        self.busy_s += cost_s
        if cost_s > 0:
            self._call_later(cost_s, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        batch, future = self._waiting.popleft()
        if self._waiting:
            self._start()
        future.set_result(answer(batch))


def answer(batch: Batch, token: int = FIRST_TOKEN) -> StepResult:
    """What the simulated device makes of a batch: drafts are right, and `token` is sampled, or the first allowed."""
    return StepResult(
        decodes=_decode_result(batch.decodes, token),
        rows=[_row_result(row, token) for row in batch.rows],
        heads=[_head_result(head, token) for head in batch.heads],
        shifts=[_NOTHING] * len(batch.shifts),
    )


@dataclass(frozen=True, slots=True)
class _UnchangedState:
    """Implements core.samplers.SamplerState: the device computes nothing, so a sampler's state stays as it was."""

    initial: Mapping[str, StateValue]

    def values(self) -> dict[str, StateValue]:
        return dict(self.initial)


_NOTHING = RowResult()


@lru_cache(maxsize=16)
def _sampled(token: int) -> RowResult:
    return RowResult((Sampled(token, 0.0, ((token, 0.0),)),))


def _decode_result(rows: DecodeRows, token: int) -> DecodeResult:
    if any(one.allowed for one in rows.samplings):
        return DecodeResult.of_rows(rows, [_row_result(row, token) for row in rows.rows()])
    num_rows = len(rows)
    return DecodeResult(
        [token] * num_rows,
        [0.0] * num_rows,
        tops=[((token, 0.0),)] * len(rows.listing),
        entropies=[0.0] * len(rows.unsure),
        states=_Unchanged(rows.samplers),
    )


class _Unchanged(Sequence[SamplerState | None]):
    """Of each row, the state in which its sampler began."""

    def __init__(self, samplers: Sequence[SamplerRun | None]) -> None:
        self._samplers = samplers

    def __len__(self) -> int:
        return len(self._samplers)

    def __getitem__(self, row: Any) -> Any:  # noqa: ANN401 (nobody slices it)
        sampler = self._samplers[row]
        return None if sampler is None else _UnchangedState(sampler.initial)


def _row_result(row: ForwardRow, token: int) -> RowResult:
    if row.sampling is None:
        sampled = _NOTHING.sampled
    elif not row.num_drafts and row.allowed_bits is None and row.sampling.allowed is None:
        sampled = _sampled(token).sampled
    else:
        drafts = row.token_ids[row.num_tokens - row.num_drafts :]
        tokens = (*drafts, _chosen(row.sampling, row.allowed_bits, token))
        sampled = [Sampled(one, 0.0, ((one, 0.0),)) for one in tokens]
    if row.sampler is not None:
        state = row.sampler.state or _UnchangedState(row.sampler.initial)
        distributions = [_distribution(request, token) for request in row.distributions]
        return RowResult(sampled, distributions, sampler_state=state)
    if not row.distributions:
        return _sampled(token) if sampled is _sampled(token).sampled else RowResult(sampled)
    return RowResult(sampled, [_distribution(request, token) for request in row.distributions])


def _head_result(head: HeadRow, token: int) -> RowResult:
    chosen = None if head.sampling is None else _chosen(head.sampling, None, token)
    sampled = () if chosen is None else (Sampled(chosen, 0.0, ((chosen, 0.0),)),)
    return RowResult(sampled, [_distribution(request, token) for request in head.distributions])


def _chosen(sampling: Sampling, allowed_bits: bytes | None, token: int) -> int:
    if allowed_bits is not None:
        bits = int.from_bytes(allowed_bits, "little")
        return (bits & -bits).bit_length() - 1
    return token if sampling.allowed is None else min(sampling.allowed)


def _distribution(request: DistributionRequest, token: int) -> Distribution:
    """All on one token. Of the k that are asked for, the others have nothing, and take as many bytes as ever."""
    first = token if request.allowed is None else min(request.allowed)
    ids, logprobs = _packed(first, request.k if request.allowed is None else 1)
    return Distribution(
        ids=ids,
        logprobs=logprobs,
        covered=1.0,
        tail_mass=0.0,
        truncated=False,
        entropy=0.0 if request.entropy else None,
        allowed_mass=None if request.allowed is None else 1.0,
    )


@lru_cache(maxsize=16)
def _packed(first: int, k: int) -> tuple[bytes, bytes]:
    """Ids as little-endian int32 and log-probabilities as float32."""
    ids = array("i", [first, *(one for one in range(k) if one != first)][:k])
    return ids.tobytes(), array("f", [0.0, *[float("-inf")] * (k - 1)]).tobytes()
