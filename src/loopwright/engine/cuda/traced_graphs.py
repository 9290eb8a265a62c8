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

from loopwright.core.samplers import TracedSampler
from loopwright.engine.cuda.captured import Captured
from loopwright.engine.cuda.sampling import normalizers
from loopwright.engine.traced import TracedRows, run_graph, sparse_vectors

MAX_GRAPHS = 16
_MIN_USES = 3  # before it is captured


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a sampler gave its rows: the token, or float64 `scores` [num_rows, vocab_size] to filter and draw from, in
    which -inf is not allowed.

    `told` float64 [num_rows, 4 + numbers] is for the host: the token, its log-probability, a code of what is wrong with
    it (of `failures` from 1 on, then `NOT_A_TOKEN` and `NOT_ALLOWED` more, or scores' own), and the number that says
    which token, or the highest score; then the numbers of `states`, as these have them."""

    scores: Tensor | None
    told: Tensor
    chosen: Tensor  # int32 [2, num_rows]: the token, or 0, and 1 if something is wrong with it
    states: Mapping[str, Tensor]
    failures: Sequence[str]


TOKEN, LOGPROB, CODE, VALUE = range(4)


NOT_A_TOKEN, NOT_ALLOWED = 1, 2


class Replay(Protocol):
    """A captured function."""

    def replay(self) -> Found: ...


Capture = Callable[[Callable[[], Found]], Replay]


@dataclass(slots=True, eq=False)
class _Kept:
    """A sampler with rows of some number: how often it was used, and what reads where once it is captured."""

    num_uses: int = 0
    logits: Tensor | None = None  # float32 [size, vocab_size]
    scores: Tensor | None = None  # likewise; the very same if nothing acts before the sampler
    sent: Tensor | None = None  # float64 [2, size]: positions and the numbers of draws
    states: Mapping[str, Tensor] | None = None
    graph: Replay | None = None


class TracedSamplers:
    """Runs samplers. With `capture` it makes graphs of those that come again."""

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._kept: OrderedDict[tuple[TracedSampler, int, bool], _Kept] = OrderedDict()

    def run(
        self, graph: TracedSampler, logits: Tensor, scores: Tensor, sent: Tensor, states: Mapping[str, Tensor]
    ) -> Found:
        """Rows of one sampler: float32 `logits` and `scores` [num_rows, vocab_size], the very same or after all that
        acts before the sampler, with -inf where nothing is allowed; float64 `sent` [2, num_rows], positions and the
        numbers of draws; what they carry. Scores that are found are good until the next run, all else for longer."""
        vocab_size, device = scores.shape[1], scores.device
        size = 1 << (len(scores) - 1).bit_length()
        kept = self._use(graph, size, is_adjusted=scores is not logits)
        if kept is None or kept.num_uses <= _MIN_USES:
            return computed(graph, logits, scores, sent, states, sparse_vectors(graph, vocab_size, device))
        if kept.graph is None:
            self._make(kept, graph, size, vocab_size, device, is_adjusted=scores is not logits)
        return self._replayed(kept, logits, scores, sent, states)

    def _use(self, graph: TracedSampler, size: int, *, is_adjusted: bool) -> _Kept | None:
        if self._capture is None:
            return None
        key = graph, size, is_adjusted
        kept = self._kept.setdefault(key, _Kept())
        kept.num_uses += 1
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_GRAPHS:
            self._kept.popitem(last=False)
        return kept

    def _make(
        self, kept: _Kept, graph: TracedSampler, size: int, vocab_size: int, device: torch.device, *, is_adjusted: bool
    ) -> None:
        assert self._capture is not None
        logits = torch.zeros(size, vocab_size, dtype=torch.float32, device=device)
        scores = torch.zeros_like(logits) if is_adjusted else logits
        sent = torch.zeros(2, size, dtype=torch.float64, device=device)
        states = {
            one.name: torch.zeros(size, vocab_size if one.is_vector else 1, dtype=torch.float64, device=device)
            for one in graph.states
        }
        sparse = sparse_vectors(graph, vocab_size, device)
        kept.logits, kept.scores, kept.sent, kept.states = logits, scores, sent, states
        kept.graph = self._capture(lambda: computed(graph, logits, scores, sent, states, sparse))

    @staticmethod
    def _replayed(kept: _Kept, logits: Tensor, scores: Tensor, sent: Tensor, states: Mapping[str, Tensor]) -> Found:
        assert kept.graph is not None
        assert kept.logits is not None
        assert kept.scores is not None
        assert kept.sent is not None
        assert kept.states is not None
        num_rows = len(scores)
        kept.logits[:num_rows] = logits
        if scores is not logits:
            kept.scores[:num_rows] = scores
        kept.sent[:, :num_rows] = sent
        for name, state in states.items():
            kept.states[name][:num_rows] = state
        found = kept.graph.replay()
        told = found.told[:num_rows].clone()  # read after other graphs have run
        vectors = {name: one[:num_rows].clone() for name, one in found.states.items() if one.shape[1] > 1}
        return replace(
            found,
            scores=None if found.scores is None else found.scores[:num_rows],
            told=told,
            chosen=found.chosen[:, :num_rows].clone(),
            states=vectors | _numbers(told, found.states),
        )


def _numbers(told: Tensor, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the states that are numbers, as `told` has them."""
    names = [name for name, one in states.items() if one.shape[1] == 1]
    return {name: told[:, place : place + 1] for place, name in enumerate(names, start=VALUE + 1)}


def computed(
    graph: TracedSampler, logits: Tensor, scores: Tensor, sent: Tensor, states: Mapping[str, Tensor],
    sparse: Mapping[int, Tensor],
) -> Found:  # fmt: skip
    """As `TracedSamplers.run`; `states` are what the rows begin with."""
    wide, vocab_size = scores.double(), scores.shape[1]
    found = run_graph(graph, TracedRows(wide, sent[0][:, None], sent[1][:, None], states, sparse))
    first = len(found.failures)
    if found.result.shape[1] == 1:
        value = found.result[:, 0]
        token_ids, chosen_from = value.nan_to_num(0.0).clamp(0, vocab_size - 1).long(), None
        picked = wide.gather(1, token_ids[:, None])[:, 0]
        raw = logits.gather(1, token_ids[:, None])[:, 0].double() - normalizers(logits).double()
        mine = torch.where(picked == -torch.inf, first + NOT_ALLOWED, 0)
        mine = torch.where(token_ids != value, first + NOT_A_TOKEN, mine)
    else:
        chosen_from = torch.where(wide > -torch.inf, found.result, -torch.inf)
        value = chosen_from.amax(-1)
        raw, token_ids = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.int64)
        mine = torch.where(value.isfinite(), 0, first + 1)
    failed = torch.where(found.failed > 0, found.failed, mine)
    numbers = [one for one in found.states.values() if one.shape[1] == 1]
    beside = torch.stack([token_ids.double(), raw.clamp(max=0.0), failed.double(), value], dim=1)
    told = torch.cat([beside, *numbers], dim=1)
    chosen = torch.stack([token_ids, failed > 0]).int()
    return Found(chosen_from, told, chosen, found.states, found.failures)


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
