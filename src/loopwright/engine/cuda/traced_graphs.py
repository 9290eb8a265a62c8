"""Samplers of programs as captured graphs, once they were used a few times: one launch in the place of dozens.

A graph is for one sampler and a size of batch; the least recently used make room. Without a device that captures, each
is run launch by launch, with the same numbers. Used by the answers.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from loopwright.core.samplers import SamplerRun, TracedSampler
from loopwright.engine.cuda.captured import Captured
from loopwright.engine.traced import TracedRows, carried, run_graph, sparse_vectors

MAX_GRAPHS = 16
_MIN_USES = 3  # before it is captured


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a sampler gave its rows, [num_rows] each: the token, or float64 `scores` [num_rows, vocab_size] to filter
    and draw from, in which -inf is not allowed; the number that says which token, or the highest score; and a code of
    what is wrong with it: of `failures` from 1 on, then `NOT_A_TOKEN` and `NOT_ALLOWED` more, or scores' own."""

    token_ids: Tensor | None
    scores: Tensor | None
    value: Tensor
    failed: Tensor
    states: Mapping[str, Tensor]
    failures: Sequence[str]


NOT_A_TOKEN, NOT_ALLOWED = 1, 2


class Replay(Protocol):
    """A captured function."""

    def replay(self) -> Found: ...


Capture = Callable[[Callable[[], Found]], Replay]


@dataclass(slots=True, eq=False)
class _Kept:
    """A sampler with rows of some number: how often it was used, and what reads where once it is captured."""

    num_uses: int = 0
    scores: Tensor | None = None  # float32 [size, vocab_size]
    sent: Tensor | None = None  # float64 [2, size]: positions and the numbers of draws
    states: Mapping[str, Tensor] | None = None
    graph: Replay | None = None


class TracedSamplers:
    """Runs samplers. With `capture` it makes graphs of those that come again."""

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._kept: OrderedDict[tuple[TracedSampler, int], _Kept] = OrderedDict()

    def run(self, graph: TracedSampler, runs: Sequence[SamplerRun], scores: Tensor, sent: Tensor) -> Found:
        """Rows of one sampler: float32 `scores` [num_rows, vocab_size], in which -inf is not allowed; float64 `sent`
        [2, num_rows], positions and the numbers of draws. What is found is good until the next run, its states for
        longer."""
        vocab_size, device = scores.shape[1], scores.device
        states = carried(graph, runs, vocab_size, device)
        size = 1 << (len(runs) - 1).bit_length()
        kept = self._use(graph, size)
        if kept is None or kept.num_uses <= _MIN_USES:
            return computed(graph, scores, sent, states, sparse_vectors(graph, vocab_size, device))
        if kept.graph is None:
            self._make(kept, graph, size, vocab_size, device)
        return self._replayed(kept, scores, sent, states)

    def _use(self, graph: TracedSampler, size: int) -> _Kept | None:
        if self._capture is None:
            return None
        kept = self._kept.setdefault((graph, size), _Kept())
        kept.num_uses += 1
        self._kept.move_to_end((graph, size))
        if len(self._kept) > MAX_GRAPHS:
            self._kept.popitem(last=False)
        return kept

    def _make(self, kept: _Kept, graph: TracedSampler, size: int, vocab_size: int, device: torch.device) -> None:
        assert self._capture is not None
        scores = torch.zeros(size, vocab_size, dtype=torch.float32, device=device)
        sent = torch.zeros(2, size, dtype=torch.float64, device=device)
        states = {
            one.name: torch.zeros(size, vocab_size if one.is_vector else 1, dtype=torch.float64, device=device)
            for one in graph.states
        }
        sparse = sparse_vectors(graph, vocab_size, device)
        kept.scores, kept.sent, kept.states = scores, sent, states
        kept.graph = self._capture(lambda: computed(graph, scores, sent, states, sparse))

    @staticmethod
    def _replayed(kept: _Kept, scores: Tensor, sent: Tensor, states: Mapping[str, Tensor]) -> Found:
        assert kept.graph is not None
        assert kept.scores is not None
        assert kept.sent is not None
        assert kept.states is not None
        num_rows = len(scores)
        kept.scores[:num_rows] = scores
        kept.sent[:, :num_rows] = sent
        for name, state in states.items():
            kept.states[name][:num_rows] = state
        found = kept.graph.replay()
        return replace(
            found,
            token_ids=None if found.token_ids is None else found.token_ids[:num_rows],
            scores=None if found.scores is None else found.scores[:num_rows],
            value=found.value[:num_rows].clone(),  # they are copied to the host after other graphs have run
            failed=found.failed[:num_rows].clone(),
            states={name: one[:num_rows].clone() for name, one in found.states.items()},
        )


def computed(
    graph: TracedSampler, scores: Tensor, sent: Tensor, states: Mapping[str, Tensor], sparse: Mapping[int, Tensor]
) -> Found:
    """As `TracedSamplers.run`; `states` are what the rows begin with."""
    wide, vocab_size = scores.double(), scores.shape[1]
    found = run_graph(graph, TracedRows(wide, sent[0][:, None], sent[1][:, None], states, sparse))
    first = len(found.failures)
    if found.result.shape[1] == 1:
        value = found.result[:, 0]
        token_ids, chosen_from = value.nan_to_num(0.0).clamp(0, vocab_size - 1).long(), None
        picked = wide.gather(1, token_ids[:, None])[:, 0]
        mine = torch.where(picked == -torch.inf, first + NOT_ALLOWED, 0)
        mine = torch.where(token_ids != value, first + NOT_A_TOKEN, mine)
    else:
        token_ids, chosen_from = None, torch.where(wide > -torch.inf, found.result, -torch.inf)
        value = chosen_from.amax(-1)
        mine = torch.where(value.isfinite(), 0, first + 1)
    failed = torch.where(found.failed > 0, found.failed, mine)
    return Found(token_ids, chosen_from, value, failed, found.states, found.failures)


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
