"""A device that only takes time: every batch succeeds after what its step costs. No torch, no thread, no real waiting.

Made by compose on an event loop, mostly one of virtual time. Tokens are ids without meaning, so what it is good for is
the study of control: who waits for whom, and how large the batches are.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from loopwright.core.batch import Batch, DecodeResult, DecodeRows, ForwardRow, HeadRow, RowResult, Sampled, StepResult
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.executor import EngineShape
from loopwright.core.results import Distribution
from loopwright.core.samplers import StateValue
from loopwright.core.step_costs import StepCosts

_TOKEN = 1  # sampled wherever it is allowed


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


def answer(batch: Batch) -> StepResult:
    """What the simulated device makes of a batch: drafts are right, and each sampled token is the first allowed."""
    return StepResult(
        decodes=_decode_result(batch.decodes),
        rows=[_row_result(row) for row in batch.rows],
        heads=[_head_result(head) for head in batch.heads],
        shifts=[_NOTHING] * len(batch.shifts),
    )


@dataclass(frozen=True, slots=True)
class _UnchangedState:
    """Implements core.samplers.SamplerState: the device computes nothing, so a sampler's state stays as it was."""

    initial: Mapping[str, StateValue]

    def values(self) -> dict[str, StateValue]:
        return dict(self.initial)


_NOTHING = RowResult()
_SAMPLED = RowResult((Sampled(_TOKEN, 0.0, ((_TOKEN, 0.0),)),))


def _decode_result(rows: DecodeRows) -> DecodeResult:
    if not any(one.allowed for one in rows.samplings):
        return DecodeResult([_TOKEN] * len(rows), [0.0] * len(rows))
    return DecodeResult.of_rows([_row_result(row) for row in rows.rows()])


def _row_result(row: ForwardRow) -> RowResult:
    if row.sampling is None:
        sampled = _NOTHING.sampled
    elif not row.num_drafts and row.allowed_bits is None and row.sampling.allowed is None:
        sampled = _SAMPLED.sampled
    else:
        drafts = row.token_ids[row.num_tokens - row.num_drafts :]
        sampled = [Sampled(token, 0.0, ((token, 0.0),)) for token in (*drafts, _chosen(row.sampling, row.allowed_bits))]
    if row.sampler is not None:
        state = row.sampler.state or _UnchangedState(row.sampler.initial)
        return RowResult(sampled, [_distribution(request) for request in row.distributions], sampler_state=state)
    if not row.distributions:
        return _SAMPLED if sampled is _SAMPLED.sampled else RowResult(sampled)
    return RowResult(sampled, [_distribution(request) for request in row.distributions])


def _head_result(head: HeadRow) -> RowResult:
    token = None if head.sampling is None else _chosen(head.sampling, None)
    sampled = () if token is None else (Sampled(token, 0.0, ((token, 0.0),)),)
    return RowResult(sampled, [_distribution(request) for request in head.distributions])


def _chosen(sampling: Sampling, allowed_bits: bytes | None) -> int:
    if allowed_bits is not None:
        bits = int.from_bytes(allowed_bits, "little")
        return (bits & -bits).bit_length() - 1
    return _TOKEN if sampling.allowed is None else min(sampling.allowed)


def _distribution(request: DistributionRequest) -> Distribution:
    """All on one token."""
    token = _TOKEN if request.allowed is None else min(request.allowed)
    return Distribution(
        ids=token.to_bytes(4, "little"),
        logprobs=bytes(4),
        covered=1.0,
        tail_mass=0.0,
        truncated=False,
        entropy=0.0 if request.entropy else None,
        allowed_mass=None if request.allowed is None else 1.0,
    )
