"""Samplers of programs as captured graphs, once they were used a few times: one launch in the place of dozens.

A graph is for one sampler and a size of batch; the least recently used make room. Without a device that captures, each
is run launch by launch, with the same numbers. Used by the answers.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.samplers import TracedSampler
from loopwright.engine.cuda.captured import Captured
from loopwright.engine.cuda.sampling import HAS_TRITON, normalizers
from loopwright.engine.traced import TracedResults, TracedRows, run_graph, sparse_vectors
from loopwright.engine.transfer import to_device

MAX_GRAPHS = 16
_MIN_USES = 3  # before it is captured


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a sampler gave its rows: the token, or float64 `scores` [num_rows, vocab_size] to filter and draw from, in
    which -inf is not allowed.

    `told` float64 [num_rows, 5 + numbers] is for the host: the token, its log-probability, a code of what is wrong with
    it (of `failures` from 1 on, then `NOT_A_TOKEN` and `NOT_ALLOWED` more, or scores' own), the number that says which
    token, or the highest score, and 1 if the row had failed before; then the numbers of `states`, as they are there."""

    scores: Tensor | None
    told: Tensor
    chosen: Tensor  # int32 [2, num_rows]: the token, or 0, and 1 if something is wrong with it
    states: Mapping[str, Tensor]
    failures: Sequence[str]


TOKEN, LOGPROB, CODE, VALUE, LOST = range(5)
NOT_A_TOKEN, NOT_ALLOWED = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A decode step whose rows all have one sampler, which nothing acts before: where its logits always are, float32
    [size, vocab_size], and the first rows of DecodeBuffers' outputs and inputs. The graph puts tokens there itself."""

    logits: Tensor
    outputs: Tensor
    inputs: Tensor


class Replay(Protocol):
    """A captured function."""

    def replay(self) -> Found: ...


Capture = Callable[[Callable[[], Found]], Replay]


@dataclass(slots=True, eq=False)
class _Kept:
    """A sampler with rows of some number: how often it was used, and what reads where once it is captured."""

    whole: Whole | None
    num_uses: int = 0
    logits: Tensor | None = None  # float32 [size, vocab_size]
    scores: Tensor | None = None  # likewise; the very same if nothing acts before the sampler
    sent: Tensor | None = None  # float64 [2, size]: positions and the numbers of draws
    states: Mapping[str, Tensor] = field(default_factory=dict)
    graph: Replay | None = None
    left: Mapping[str, Tensor] | None = None  # what the last run gave as states: `states` holds it


class TracedSamplers:
    """Runs samplers. With `capture` it makes graphs of those that come again."""

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._kept: OrderedDict[tuple[object, ...], _Kept] = OrderedDict()

    def run(
        self, graph: TracedSampler, logits: Tensor, scores: Tensor, sent: NDArray[np.float64] | None,
        states: Mapping[str, Tensor], whole: Whole | None = None,
    ) -> tuple[Found, bool]:  # fmt: skip
        """Rows of one sampler: float32 `logits` and `scores` [num_rows, vocab_size], the very same or after all that
        acts before the sampler, with -inf where nothing is allowed; `sent` [2, num_rows], positions and the numbers of
        draws, None if the sampler asks for neither; what they carry. `whole` says where the logits are, if these are
        all rows of a step. Scores that are found are good until the next run, all else for longer.

        Also whether the tokens are where the next step looks, and `LOST` says who had failed."""
        vocab_size, device = scores.shape[1], scores.device
        kept = self._use(graph, scores, whole, is_adjusted=scores is not logits)
        if kept is None or kept.num_uses <= _MIN_USES:
            numbers = torch.zeros(2, len(scores), dtype=torch.float64, device=device)
            if sent is not None:
                numbers = to_device(sent, device)
            sparse = sparse_vectors(graph, vocab_size, device)
            return computed(graph, logits, scores, numbers, states, sparse), False
        if kept.graph is None:
            self._make(kept, graph, vocab_size, device, is_adjusted=scores is not logits, num_rows=len(scores))
        return self._replayed(kept, logits, scores, sent, states), kept.whole is not None

    def _use(self, graph: TracedSampler, scores: Tensor, whole: Whole | None, *, is_adjusted: bool) -> _Kept | None:
        if self._capture is None:
            return None
        where = (_size_of(len(scores)), is_adjusted) if whole is None else (whole.logits.data_ptr(), len(whole.logits))
        key = graph, whole is not None, *where
        kept = self._kept.setdefault(key, _Kept(whole))
        kept.num_uses += 1
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_GRAPHS:
            self._kept.popitem(last=False)
        return kept

    def _make(
        self, kept: _Kept, graph: TracedSampler, vocab_size: int, device: torch.device, *, is_adjusted: bool,
        num_rows: int,
    ) -> None:  # fmt: skip
        assert self._capture is not None
        whole = kept.whole
        size = _size_of(num_rows) if whole is None else len(whole.logits)
        logits = torch.zeros(size, vocab_size, device=device) if whole is None else whole.logits
        scores = torch.zeros_like(logits) if is_adjusted else logits
        sent = torch.zeros(2, size, dtype=torch.float64, device=device)
        states = {
            one.name: torch.zeros(size, vocab_size if one.is_vector else 1, dtype=torch.float64, device=device)
            for one in graph.states
        }
        sparse = sparse_vectors(graph, vocab_size, device)
        kept.logits, kept.scores, kept.sent, kept.states = logits, scores, sent, states

        def run() -> Found:
            found = computed(graph, logits, scores, sent, states, sparse, whole)
            found = replace(found, states={name: _apart(one, states) for name, one in found.states.items()})
            for name, one in found.states.items():  # they are there for the next token of the same rows
                states[name].copy_(one)
            return found

        before = [] if whole is None else [one.clone() for one in (whole.outputs, whole.inputs)]
        kept.graph = self._capture(run)
        if whole is not None:  # capturing runs it, too
            for one, was in zip((whole.outputs, whole.inputs), before, strict=True):
                one.copy_(was)

    @staticmethod
    def _replayed(
        kept: _Kept, logits: Tensor, scores: Tensor, sent: NDArray[np.float64] | None, states: Mapping[str, Tensor]
    ) -> Found:
        assert kept.graph is not None
        assert kept.logits is not None
        assert kept.scores is not None
        assert kept.sent is not None
        num_rows = len(scores)
        if kept.whole is None:
            kept.logits[:num_rows] = logits
        if scores is not logits:
            kept.scores[:num_rows] = scores
        if sent is not None:
            kept.sent[:, :num_rows] = to_device(sent, kept.sent.device)
        if states is not kept.left:
            for name, state in states.items():
                kept.states[name][:num_rows] = state
        found = kept.graph.replay()
        told = found.told[:num_rows].clone()  # read after other graphs have run
        vectors = {name: one[:num_rows].clone() for name, one in found.states.items() if one.shape[1] > 1}
        kept.left = vectors | _numbers(told, found.states)
        return replace(
            found,
            scores=None if found.scores is None else found.scores[:num_rows],
            told=told,
            chosen=found.chosen[:, :num_rows] if kept.whole is not None else found.chosen[:, :num_rows].clone(),
            states=kept.left,
        )


def _size_of(num_rows: int) -> int:
    return 1 << (num_rows - 1).bit_length()


def _apart(state: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
    """What does not change with the buffers, as a state does that is what it or another was."""
    return state.clone() if any(state.data_ptr() == one.data_ptr() for one in buffers.values()) else state


def _put(chosen: Tensor, whole: Whole) -> None:
    """The tokens where the next step looks."""
    whole.outputs[2] |= chosen[1]
    whole.outputs[0] = chosen[0]
    whole.inputs[::4] = whole.outputs[::2]


def _numbers(told: Tensor, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the states that are numbers, as `told` has them."""
    names = [name for name, one in states.items() if one.shape[1] == 1]
    return {name: told[:, place : place + 1] for place, name in enumerate(names, start=LOST + 1)}


def computed(
    graph: TracedSampler, logits: Tensor, scores: Tensor, sent: Tensor, states: Mapping[str, Tensor],
    sparse: Mapping[int, Tensor], whole: Whole | None = None,
) -> Found:  # fmt: skip
    """As `TracedSamplers.run`; `states` are what the rows begin with, and tokens are put into `whole`, if given."""
    found = run_graph(graph, TracedRows(scores, sent[0][:, None], sent[1][:, None], states, sparse))
    if found.result.shape[1] == 1:
        told, chosen = told_of(found, logits, scores, whole)
        return Found(None, told, chosen, found.states, found.failures)
    chosen_from = torch.where(scores > -torch.inf, found.result, -torch.inf)
    value = chosen_from.amax(-1)
    nothing = torch.zeros_like(value)
    mine = torch.where(value.isfinite(), 0, len(found.failures) + 1)
    told, chosen = _packed(found, nothing.long(), nothing, mine, value, None)
    return Found(chosen_from, told, chosen, found.states, found.failures)


def told_of(found: TracedResults, logits: Tensor, scores: Tensor, whole: Whole | None) -> tuple[Tensor, Tensor]:
    """`told` and `chosen` of Found, of a sampler that gives a token, which is put into `whole`, if given."""
    if logits.is_cuda and HAS_TRITON:
        from loopwright.engine.cuda import told_kernels  # noqa: PLC0415 (there may be no Triton)

        buffers = (None, None) if whole is None else (whole.outputs, whole.inputs)
        return told_kernels.told_of(found, logits, scores, *buffers)
    return told_by_torch(found, logits, scores, whole)


def told_by_torch(found: TracedResults, logits: Tensor, scores: Tensor, whole: Whole | None) -> tuple[Tensor, Tensor]:
    """As `told_of`: the reference of the kernel."""
    first, value = len(found.failures), found.result[:, 0]
    token_ids = value.nan_to_num(0.0).clamp(0, scores.shape[1] - 1).long()
    picked = scores.gather(1, token_ids[:, None])[:, 0]
    raw = logits.gather(1, token_ids[:, None])[:, 0].double() - normalizers(logits).double()
    mine = torch.where(picked == -torch.inf, first + NOT_ALLOWED, 0)
    mine = torch.where(token_ids != value, first + NOT_A_TOKEN, mine)
    told, chosen = _packed(found, token_ids, raw, mine, value, None if whole is None else whole.outputs[2])
    if whole is not None:
        _put(chosen, whole)
    return told, chosen


def _packed(
    found: TracedResults, token_ids: Tensor, raw: Tensor, mine: Tensor, value: Tensor, lost: Tensor | None
) -> tuple[Tensor, Tensor]:
    checked = found.failed
    failed = torch.where(checked > 0, checked, mine)
    numbers = [one for one in found.states.values() if one.shape[1] == 1]
    had_failed = torch.zeros_like(value) if lost is None else lost.double()
    beside = torch.stack([token_ids.double(), raw.clamp(max=0.0), failed.double(), value, had_failed], dim=1)
    return torch.cat([beside, *numbers], dim=1), torch.stack([token_ids, failed > 0]).int()


class CudaCaptures:
    """Captures on a stream of its own, while others run; waits for nothing. Graphs share their memory: what one gives
    is good until the next is replayed."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Found]) -> Captured[Found]:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()  # kernels are loaded outside of the capture
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                found = run()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return Captured(graph, found)
