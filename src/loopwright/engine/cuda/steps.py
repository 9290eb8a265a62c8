"""Rows of one token, step after step: sends what changed, runs the model as a captured graph, samples on the device.

Never decides who is in a step and never waits for the device. Used by the runner.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loopwright.core.batch import DecodeRows, ForwardRow
from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.captured import Captured
from loopwright.engine.cuda.decoder import DeviceDecoder
from loopwright.engine.cuda.draws import CapturedDraws, drawn
from loopwright.engine.cuda.listed import WIDTH
from loopwright.engine.cuda.operations import Operations
from loopwright.engine.cuda.row_adjustments import RowAdjustments, SteppingRows
from loopwright.engine.cuda.sampling import RowSamplings, normalizers
from loopwright.engine.cuda.tables import Changes, RowTables
from loopwright.engine.cuda.traced_graphs import Whole
from loopwright.engine.loaded_model import Ranks
from loopwright.engine.transfer import SentNumbers, to_device

if TYPE_CHECKING:
    from loopwright.engine.cuda.passes import Passes

FoundT = TypeVar("FoundT")

Report = Callable[[str, float | None], None]

_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)


def bucket_sizes(max_rows: int) -> list[int]:
    """The batches that are captured: up to `max_rows`, which is one of them."""
    sizes = [size for size in _SIZES if size < max_rows]
    while sizes and sizes[-1] + 64 < max_rows and sizes[-1] >= _SIZES[-1]:
        sizes.append(sizes[-1] + 64)
    return [*sizes, max_rows]


class Beside(NamedTuple):
    """Rows of other kinds in the same pass: vectors [num_tokens, hidden_size], positions [num_tokens], whose they are,
    and of which tokens the hidden states are asked for; None: of all."""

    hidden: Tensor
    positions: Tensor
    rows: Sequence[AttentionRow]
    kept: Tensor | None


class DecodeSteps:
    """The buffers of up to `max_rows` rows, and a graph for each size of batch."""

    def __init__(
        self, decoder: DeviceDecoder, operations: Operations, ranks: Ranks, *, max_rows: int, max_blocks: int,
        has_passes: bool = False,
    ) -> None:  # fmt: skip
        """With `has_passes` prompts of some hundred tokens are graphs too, where anything is."""
        self._decoder, self._operations, self._ranks = decoder, operations, ranks
        self._device = decoder.device
        self._sizes = bucket_sizes(max_rows)
        scratch = decoder.cache.scratch_block
        self.buffers = DecodeBuffers.make(max_rows, max_blocks, scratch, self._device)
        self.tables = RowTables(max_rows, max_blocks, scratch)
        self._own = DecodeBuffers.make(max_rows, 1, scratch, self._device)  # what a rank chooses of its vocabulary
        self._draws = CapturedDraws(self.buffers, max_rows, operations)
        self.adjustments = RowAdjustments(max_rows, decoder.vocab_size, self._device)
        self._has_passes = has_passes and ranks.num_ranks == 1
        self._passes: Passes | None = None
        self._goes_on = False  # the rows of the step that was entered last are those of the one before
        self._ids = SentNumbers(max_rows, self._device)
        self._graphs: dict[int, Captured[Tensor]] = {}  # by the size of the batch; up to the logits
        self._greedy: dict[int, Captured[Tensor]] = {}  # with the choice of the likeliest token
        self._lists: dict[int, Captured[Tensor]] = {}  # behind it: the likeliest tokens of each row
        self._ends: dict[int, Captured[Tensor]] = {}  # behind those up to the logits: these, in place of a choice

    @property
    def max_rows(self) -> int:
        return self._sizes[-1]

    def capture(self, report: Report) -> None:
        """Captures a graph for each size of batch, the largest first: the others fit into its memory."""
        if not (self._device.type == "cuda" and self._operations.can_be_captured):
            return
        report("measuring products of prompts", None)
        self._decoder.measure()
        pool = torch.cuda.graph_pool_handle()
        for place, size in enumerate(reversed(self._sizes)):
            report(f"capturing graphs for up to {self.max_rows} rows", place / len(self._sizes))
            self._graphs[size] = _capture(partial(self._decoder.decode, self.buffers, size), pool)
            self._greedy[size] = _capture(partial(self._decode_greedily, size), pool)
            if self._ranks.num_ranks == 1:  # else these are the logits of a part of the vocabulary
                self._lists[size] = _capture(partial(self._listed, self._greedy[size].found, is_end=False), pool)
                self._ends[size] = _capture(partial(self._listed, self._graphs[size].found, is_end=True), pool)
            self._draws.capture(
                size, self._graphs[size].found, self.adjustments.tables, lambda run: _capture(run, pool)
            )
        if self._has_passes:
            from loopwright.engine.cuda.passes import Passes  # noqa: PLC0415 (there may be no Triton)

            report("capturing graphs for prompts", 0.0)
            self._passes = Passes(self._decoder, self.max_rows, self.buffers.table.shape[1])
            self._passes.capture(lambda run: _capture(run, pool))
        logits = self._graphs[self._sizes[0]].found  # what no graph has is compiled now, too
        self._operations.top(logits, 1)
        normalizers(logits)
        torch.cuda.synchronize()
        report(f"capturing graphs for up to {self.max_rows} rows", 1.0)

    def forget_graphs(self) -> None:
        """Gives back what was captured; no step may follow."""
        for kind in (self._graphs, self._greedy, self._lists, self._ends):
            for captured in kind.values():
                captured.graph.reset()
            kind.clear()
        if self._passes is not None:
            self._passes.forget()
            self._passes = None

    def forward(
        self, decodes: DecodeRows, singles: Sequence[ForwardRow], before: Tensor | None, *, is_greedy: bool,
        wants_logits: bool = True,
    ) -> Tensor:  # fmt: skip
        """Runs the model for the rows, the decode rows first: float32 logits [num_rows, vocab_size], good until the
        next step. `before` [2, rows of the batch before] are the ids that it sampled, and 1 for the rows that failed;
        None if it failed.

        With `is_greedy` the likeliest tokens are in the outputs of the buffers. Else the outputs are to be written
        next, and made the inputs of the step after. `tables.sampled` is to be told either way. Who is greedy and does
        not want the logits gets, of several ranks, those of this one's tokens alone."""
        num_rows = len(decodes) + len(singles)
        size = self._enter(decodes, singles, before)
        is_apart = wants_logits and self._ranks.num_ranks > 1  # the greedy way has not all logits then
        if is_greedy and not is_apart:
            captured = self._greedy.get(size)
            logits = self._decode_greedily(size) if captured is None else captured.replay()
        else:
            captured = self._graphs.get(size)
            logits = self._decoder.decode(self.buffers, size) if captured is None else captured.replay()
            if is_greedy:
                self._operations.end_greedy(self.buffers, size, logits)
        self.tables.ran()
        return logits[:num_rows]

    def list_on(self, token_ids: Sequence[int]) -> Tensor:
        """A whole step of the rows that are due, which want to know their likeliest tokens and nothing else: as
        `likeliest`."""
        num_rows = len(token_ids)
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        self._send(self.tables.go_on(token_ids), size, None)
        found = self._list_all(size)
        self.tables.ran()
        self.tables.sampled(None)
        return found[:num_rows]

    def _list_all(self, size: int) -> Tensor:
        """Runs the model, and lists in place of a choice."""
        captured, ends = self._graphs.get(size), self._ends.get(size)
        logits = self._decoder.decode(self.buffers, size) if captured is None else captured.replay()
        return self._listed(logits, is_end=True) if ends is None else ends.replay()

    def forward_beside(
        self, decodes: DecodeRows, singles: Sequence[ForwardRow], before: Tensor | None, beside: Beside, *,
        is_greedy: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As `forward`, in one pass with other rows: logits, and the hidden states of the others' kept tokens."""
        num_rows = len(decodes) + len(singles)
        size = self._enter(decodes, singles, before)
        if self._passes is not None and self._passes.has(num_rows, beside.rows):
            normalized, found = self._passes.run(self.buffers, num_rows, beside.hidden, beside.positions, beside.rows)
            logits = self._decoder.logits(normalized)
            hidden = found.clone() if beside.kept is None else found[beside.kept]
        else:
            logits, hidden = self._decoder.forward_beside(self.buffers, num_rows, *beside)
        if is_greedy:
            self._operations.end_greedy(self.buffers, num_rows, logits)
        elif (captured := self._graphs.get(size)) is not None:  # the graph of draws reads them there
            logits = captured.found[:num_rows].copy_(logits)
        self.tables.ran()
        return logits, hidden

    def forward_others(self, beside: Beside) -> Tensor:
        """A pass without rows of one token: hidden states of the kept tokens."""
        if self._passes is None or not self._passes.has(0, beside.rows):
            return self._decoder.forward(*beside)
        _, found = self._passes.run(self.buffers, 0, beside.hidden, beside.positions, beside.rows)
        return found.clone() if beside.kept is None else found[beside.kept]

    def draw(
        self, logits: Tensor, samplings: RowSamplings, decodes: DecodeRows, singles: Sequence[ForwardRow],
        places: Sequence[int], batch_number: int,
    ) -> None:  # fmt: skip
        """Writes what is drawn from the logits of `forward` to the outputs, and makes it the next step's inputs.
        `places` are those of the rows in their batch; batches that follow one another have numbers that do."""
        buffers, num_rows, tables = self.buffers, len(logits), None
        positions = self.tables.positions[:num_rows]
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        if samplings.adjusted:
            rows = SteppingRows(decodes, singles, places, self._goes_on)
            tables = self.adjustments.place(rows, samplings, buffers.ids, size, batch_number)
        if not self._draws.draw(size, samplings, positions):
            numbers = self.to_device(samplings.numbers(positions))
            drawn(self._operations, buffers, logits, samplings, numbers, tables)

    def likeliest(self, logits: Tensor) -> Tensor:
        """As `Operations.listed` by `WIDTH`, for the logits of `forward`, once tokens were chosen; good until the next
        step."""
        num_rows = len(logits)
        captured = self._lists.get(size := self._sizes[bisect_left(self._sizes, num_rows)])
        if captured is None:
            return self._listed(logits, is_end=False)
        read = self._greedy[size].found
        if logits.data_ptr() != read.data_ptr():
            read[:num_rows] = logits
        return captured.replay()[:num_rows]

    def whole(self, logits: Tensor) -> Whole | None:
        """Where the logits of `forward` and what is sampled always are, in steps of this size; None if that differs."""
        size = self._sizes[bisect_left(self._sizes, len(logits))]
        for captured in (self._greedy.get(size), self._graphs.get(size)):
            if captured is not None and captured.found.data_ptr() == logits.data_ptr():
                return Whole(captured.found, self.buffers.outputs[:, :size], self.buffers.inputs[:, :size])
        return None

    def forget(self) -> None:
        """The next step sends everything: this one may not have run."""
        self.tables.forget()
        self.adjustments.forget()

    def note(self, rows: Tensor | slice, sampled: Tensor) -> None:
        """Puts what rows were answered, [2, rows] as `Answers.sampled`, where the outputs and the next inputs are."""
        self.tables.noted()
        self.adjustments.correct(rows, self.buffers.outputs[0], sampled[0])
        self.buffers.outputs[::2, rows] = sampled
        self.buffers.inputs[::4, rows] = sampled

    def _enter(self, decodes: DecodeRows, singles: Sequence[ForwardRow], before: Tensor | None) -> int:
        """Has the rows in the buffers; the size of batch that has room for them."""
        size = self._sizes[bisect_left(self._sizes, len(decodes) + len(singles))]
        changes = self.tables.place(decodes, singles, size)
        self._goes_on = changes.inputs is None and changes.ids is None
        self._send(changes, size, before)
        return size

    def advance(self, num_rows: int) -> None:
        """In place of `draw`, where others draw: the next step's inputs are one place on, and their ids to be noted."""
        self.buffers.outputs[:, :num_rows] = 0
        self._operations.advance(self.buffers, num_rows)

    def _listed(self, logits: Tensor, *, is_end: bool) -> Tensor:
        return self._operations.listed(self.buffers, logits, min(WIDTH, logits.shape[1]), is_end=is_end)

    def _decode_greedily(self, size: int) -> Tensor:
        logits = self._decoder.decode_own(self.buffers, size)
        if self._ranks.num_ranks == 1:
            self._operations.end_greedy(self.buffers, size, logits)
        else:
            self._own.failed.zero_()
            self._operations.end_greedy(self._own, size, logits)
            choose_among_ranks(self._ranks, self._own.outputs[:, :size], logits, self.buffers.outputs[:, :size])
            self.buffers.outputs[2, :size] |= self.buffers.failed[:size]
            self._operations.advance(self.buffers, size)
        return logits

    def _send(self, changes: Changes, size: int, before: Tensor | None) -> None:
        buffers = self.buffers
        if changes.inputs is not None:
            buffers.inputs[:, :size] = self.to_device(changes.inputs)
        if changes.sources is not None:
            self._take_from(self.to_device(changes.sources), before)
        if changes.table is not None:
            buffers.table[:size, : changes.table.shape[1]] = self.to_device(changes.table)
        if changes.at is not None and changes.blocks is not None:
            sent = self.to_device(np.stack([changes.at, changes.blocks]))
            buffers.table.view(-1).index_copy_(0, sent[0].long(), sent[1])
        if changes.ids is not None:
            self._ids.place_on(buffers.inputs[0, : len(changes.ids)], changes.ids)

    def _take_from(self, sources: Tensor, before: Tensor | None) -> None:
        """Fills in ids from the batch before."""
        has_source, inputs = sources >= 0, self.buffers.inputs[:, : len(sources)]
        if before is None:
            inputs[4] = has_source.int()
            return
        taken = before[:, sources.clamp(min=0).long()]
        inputs[0] = torch.where(has_source, taken[0], inputs[0])
        inputs[4] = torch.where(has_source, taken[1], 0)

    def to_device(self, numbers: NDArray[Any]) -> Tensor:
        """A copy, which is under way when this returns."""
        return to_device(numbers, self._device)


def choose_among_ranks(ranks: Ranks, own: Tensor, logits: Tensor, outputs: Tensor) -> None:
    """Of what each rank has chosen of its own tokens, whose logits [num_rows, size] it has, the likeliest of all: `own`
    and `outputs` are [3, num_rows] as in DecodeBuffers. Of equal logits the lowest id, as one process would choose."""
    own_ids = own[0].clamp(0, logits.shape[1] - 1)  # among NaN there may be none that is likeliest
    best = logits.gather(1, own_ids.long()[:, None])[:, 0]
    normalizers = best - own[1].view(torch.float32)
    ids = own_ids + ranks.rank * logits.shape[1]
    mine = torch.stack([best.view(torch.int32), ids, normalizers.view(torch.int32), own[2]], dim=1)
    all_best, all_ids, all_normalizers, failed = ranks.side_by_side(mine).view(len(mine), -1, 4).unbind(-1)
    values = all_best.view(torch.float32)
    chosen = values.argmax(1, keepdim=True)  # of equal values, the first
    outputs[0] = all_ids.gather(1, chosen)[:, 0]
    logprobs = values.gather(1, chosen)[:, 0] - all_normalizers.view(torch.float32).logsumexp(1)
    outputs[1] = logprobs.clamp(max=0.0).view(torch.int32)
    outputs[2] = failed.amax(1)


def _capture(run: Callable[[], FoundT], pool: Any) -> Captured[FoundT]:  # noqa: ANN401 (torch has no public name for it)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # kernels are compiled and handles made outside of the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = run()
    return Captured(graph, result)
