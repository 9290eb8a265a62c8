"""What the device knows of the rows that decode, kept on the host too, and what a step has to send. Never sends it.

From one step to the next most rows are the same, one place further: then all that is new is a block for the rows that
reach one. Anything else sends everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loopwright.core.batch import DecodeRows, ForwardRow
from loopwright.engine.kv_cache import BLOCK_SIZE

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What a step sends. `inputs` [5, num_rows] as in DecodeBuffers; without, the device's own go on.

    `sources` [num_rows] has, for rows whose id is what a row of the batch before samples, that row's place there, else
    -1. `table` are all blocks of the rows, [num_rows, blocks]; without, `at` [n] are places of the flat table that get
    `blocks` [n]. `ids` [num_rows] come alone when only they differ from what the device sampled."""

    inputs: Numbers | None = None
    table: Numbers | None = None
    at: Numbers | None = None
    blocks: Numbers | None = None
    ids: Numbers | None = None
    sources: Numbers | None = None


class Due(NamedTuple):
    """Blocks, positions and KV lengths of rows, each the one that is next."""

    block_ids: Sequence[Sequence[int]]
    positions: Sequence[int]
    kv_lens: Sequence[int]


class RowTables:
    """The host's copy of DecodeBuffers: `table` [max_rows, max_blocks], `kv_lens` [max_rows] before the next step."""

    def __init__(self, max_rows: int, max_blocks: int, scratch_block: int) -> None:
        self.table: Numbers = np.full((max_rows, max_blocks), scratch_block, np.int32)
        self.kv_lens: Numbers = np.zeros(max_rows, np.int32)
        self.positions: Numbers = np.zeros(max_rows, np.int32)  # of the tokens that the step samples
        self._scratch = scratch_block
        self._num_steps = -1  # of the decode rows that ran last; -1: nothing that could go on
        self._block_ids: Sequence[Sequence[int]] = ()
        self._sampled: Sequence[int] | None = None
        self._num_rows = 0  # in use by the step that ran last
        self._singles: list[Sequence[int]] = []  # of its rows, if these were nothing but singles: their blocks

    def forget(self) -> None:
        """The next step sends everything: this one may not have run."""
        self._num_steps = -1
        self._singles = []

    def noted(self) -> None:
        """The device's inputs are not all what the step left there."""
        self._singles = []

    def sampled(self, token_ids: Sequence[int] | None) -> None:
        """What was told of the step that ran last; None: not what the device has as its next inputs."""
        self._sampled = token_ids

    def place(self, decodes: DecodeRows, singles: Sequence[ForwardRow], num_padded: int) -> Changes:
        """Takes the rows of the next step, the decode rows first, in a batch of `num_padded`."""
        is_next = (
            decodes.block_ids is self._block_ids
            and decodes.num_steps == self._num_steps + 1
            and self._num_steps >= 0
            and not singles
            and (not decodes.sources or isinstance(decodes.sources, range))
        )
        changes = self._next(decodes) if is_next else None if decodes else self._next_singles(singles)
        if changes is None:
            changes = self._anew(decodes, singles, num_padded)
            self._singles = [] if decodes else [one.block_ids for one in singles]
        self._num_steps = decodes.num_steps if not singles else -1
        self._block_ids = decodes.block_ids
        self._num_rows = num_rows = len(decodes) + len(singles)
        self.positions[:num_rows] += 1
        return changes

    @property
    def due(self) -> Due:
        """With what the rows of the step that ran last would go on, if these were nothing but singles."""
        num = len(self._singles)
        return Due(self._singles, self.positions[:num].tolist(), self.kv_lens[:num].tolist())

    def go_on(self, token_ids: Sequence[int]) -> Changes:
        """As `place`, of the rows that are due."""
        at, blocks = self._reached(self._singles)
        self.positions[: self._num_rows] += 1
        return Changes(at=at, blocks=blocks, ids=np.array(token_ids, np.int32))

    def ran(self) -> None:
        """The step was launched: the device is one place further."""
        self.kv_lens[: self._num_rows] += 1

    def _next(self, decodes: DecodeRows) -> Changes:
        self._singles = []
        at, blocks = self._reached(decodes.block_ids)
        is_known = isinstance(decodes.sources, range) or decodes.token_ids is self._sampled
        ids = None if is_known else np.array(decodes.token_ids, np.int32)
        return Changes(at=at, blocks=blocks, ids=ids)

    def _next_singles(self, singles: Sequence[ForwardRow]) -> Changes | None:
        """If nothing but the ids is not known: rows that go on one by one, with the very lists of blocks that they had
        in the step before."""
        known = self._singles
        if len(known) != len(singles) or any(map(_is_other, known, singles)):
            return None
        num_rows = len(singles)
        own = np.array([(one.token_ids[0], one.positions[0], one.kv_len) for one in singles], np.int32).T
        if (own[1] != self.positions[:num_rows]).any() or (own[2] != self.kv_lens[:num_rows]).any():
            return None
        at, blocks = self._reached(known)
        return Changes(at=at, blocks=blocks, ids=own[0])

    def _reached(self, block_ids: Sequence[Sequence[int]]) -> tuple[Numbers | None, Numbers]:
        """The places of the flat table of rows whose next token begins a block, and those blocks."""
        kv_lens = self.kv_lens[: len(block_ids)]
        reaching = np.flatnonzero(kv_lens % BLOCK_SIZE == 0)
        columns = kv_lens[reaching] // BLOCK_SIZE
        new = [block_ids[row][column] for row, column in zip(reaching.tolist(), columns.tolist(), strict=True)]
        blocks = np.array(new, np.int32)
        self.table[reaching, columns] = blocks
        at = (reaching * self.table.shape[1] + columns).astype(np.int32)
        return at if len(at) else None, blocks

    def _anew(self, decodes: DecodeRows, singles: Sequence[ForwardRow], num_padded: int) -> Changes:
        num_decodes, num_rows = len(decodes), len(decodes) + len(singles)
        inputs = np.zeros((5, num_padded), np.int32)
        inputs[0, :num_decodes] = decodes.token_ids
        inputs[1, :num_decodes] = decodes.positions
        inputs[2, :num_decodes] = decodes.kv_lens
        inputs[1:3, :num_decodes] += decodes.num_steps
        if singles:
            own = [(one.token_ids[0], one.positions[0], one.kv_len) for one in singles]
            inputs[:3, num_decodes:num_rows] = np.array(own, np.int32).T
        inputs[3, :num_rows] = 1
        self.positions[:num_padded], self.kv_lens[:num_padded] = inputs[1], inputs[2]
        tables = [*decodes.block_ids, *(single.block_ids for single in singles)]
        used = (inputs[2] // BLOCK_SIZE + 1)[:num_rows].tolist()
        width = max(used)
        self.table[:num_padded, :width] = self._scratch
        for row, (blocks, num_blocks) in enumerate(zip(tables, used, strict=True)):
            self.table[row, :num_blocks] = blocks[:num_blocks]
        sources = [*(decodes.sources or [-1] * num_decodes), *(single.source for single in singles)]
        has_sources = max(sources) >= 0
        return Changes(
            inputs=inputs,
            table=self.table[:num_padded, :width],
            sources=np.array(sources, np.int32) if has_sources else None,
        )


def _is_other(block_ids: Sequence[int], row: ForwardRow) -> bool:
    return row.block_ids is not block_ids or row.source >= 0
