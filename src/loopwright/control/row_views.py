"""Decides which KV places a row sees when its page list has hidden ones, by a page's mask or a window. Runs nothing.

Owned by one feed, which passes each of its rows through. Blocks of which no token of the row sees anything leave the
row, so that a row of one token needs no mask as long as what is hidden are whole blocks.
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from loopwright.core.batch import ForwardRow
from loopwright.core.calls import KvWindow, Visibility
from loopwright.core.ids import BlockId


class RowView:
    """What the rows of one feed see. Sets of places are integers: bit i is place i of the page list."""

    __slots__ = ("_block_size", "_border", "_hidden", "_looked_at", "_positions", "_slid", "_window")

    def __init__(self, block_size: int, hidden: int, window: KvWindow | None) -> None:
        self._block_size = block_size
        self._hidden = hidden
        self._window = window
        self._positions: list[int] = [] if window is None else list(window.positions)  # of each place
        self._border = self._slid = 0  # the last window's border, and the places that it hides
        self._looked_at = (0, 0)  # by `out_of_window`: the border, and how many blocks were full

    def of(self, row: ForwardRow) -> ForwardRow:
        """The row with what it sees."""
        if self._window is not None:
            self._place(row.kv_len, row.positions)
        hidden = [self._hidden] * row.num_tokens
        if self._window is not None:
            hidden = [one | self._out_of_window(place) for one, place in zip(hidden, row.positions, strict=True)]
        dropped = self._dropped(hidden, row.kv_len)
        gone = sum(((1 << self._block_size) - 1) << block * self._block_size for block in dropped)
        mask = None
        if row.mask is not None or any(one & ~gone for one in hidden):
            mask = [self._runs(row, token, hidden[token], dropped) for token in range(row.num_tokens)]
        elif not dropped:
            return row
        return replace(
            row, block_ids=_without(row.block_ids, dropped), kv_len=row.kv_len - len(dropped) * self._block_size,
            mask=mask,
        )  # fmt: skip

    def out_of_window(self, position: int, kv_len: int) -> list[int]:
        """The full blocks that no token at `position` or behind it can see, since they lie outside its window; what is
        hidden by a mask alone stays. Nothing, if this was asked and answered before."""
        if self._window is None:
            return []
        border, num_full = self._border_of(position), kv_len // self._block_size
        if (border, num_full) == self._looked_at:
            return []
        self._looked_at = (border, num_full)
        slid, full = self._slid_at(border), (1 << self._block_size) - 1
        return [block for block in range(num_full) if slid >> block * self._block_size & full == full]

    def leave_out(self, blocks: Sequence[int]) -> None:
        """The blocks are no longer in the page list: those behind them move up."""
        size = self._block_size
        for block in reversed(blocks):
            del self._positions[block * size : (block + 1) * size]
            self._hidden, self._slid = (_without_block(bits, block, size) for bits in (self._hidden, self._slid))
        border, num_full = self._looked_at
        self._looked_at = (border, num_full - len(blocks))

    def _place(self, kv_len: int, positions: Sequence[int]) -> None:
        """Notes where the row's tokens stand."""
        assert self._window is not None
        assert kv_len <= len(self._positions), "places are written one after the other"
        # A veto took tokens back: their places are written again. Had one of them slid, the border moves back, too, and
        # what has slid is found anew.
        del self._positions[kv_len:]
        for place, position in enumerate(positions, start=kv_len):
            if self._window.sinks <= position < self._border:
                self._slid |= 1 << place
        self._positions += positions

    def _out_of_window(self, position: int) -> int:
        """The places that a token at `position` does not see."""
        border = self._border_of(position)
        if border != self._border:
            self._border, self._slid = border, self._slid_at(border)
        return self._slid

    def _border_of(self, position: int) -> int:
        assert self._window is not None
        return max(0, (position + 1 - self._window.size) // self._block_size * self._block_size)

    def _slid_at(self, border: int) -> int:
        assert self._window is not None
        sinks = self._window.sinks
        return sum(1 << place for place, one in enumerate(self._positions) if sinks <= one < border)

    def _dropped(self, hidden: Sequence[int], kv_len: int) -> list[int]:
        """The full blocks that lie before the row and that none of its tokens sees."""
        shared, size = hidden[0], self._block_size
        for one in hidden[1:]:
            shared &= one
        if not shared:
            return []
        full = (1 << size) - 1
        return [block for block in range(kv_len // size) if shared >> block * size & full == full]

    def _runs(self, row: ForwardRow, token: int, hidden: int, dropped: Sequence[int]) -> Visibility:
        """What one token sees, over the places of the blocks that stay."""
        own = 1 << row.kv_len + token
        seen = (2 * own - 1 if row.mask is None else _bits(row.mask[token])) & ~hidden
        size = self._block_size
        for block in reversed(dropped):
            seen = _without_block(seen, block, size)
        return _run_lengths(seen)


def _without(block_ids: Sequence[BlockId], dropped: Collection[int]) -> list[BlockId]:
    gone = set(dropped)
    return [block_id for place, block_id in enumerate(block_ids) if place not in gone]


def _without_block(bits: int, block: int, size: int) -> int:
    """The places, when a block of them is taken out and those behind it move up."""
    return bits & (1 << block * size) - 1 | bits >> (block + 1) * size << block * size


def _bits(runs: Visibility) -> int:
    bits = place = 0
    for number, length in enumerate(runs):
        if number % 2:
            bits |= (1 << length) - 1 << place
        place += length
    return bits


def _run_lengths(bits: int) -> Visibility:
    runs: list[int] = []
    while bits:
        num_hidden = (bits & -bits).bit_length() - 1
        bits >>= num_hidden
        num_seen = (~bits & bits + 1).bit_length() - 1
        bits >>= num_seen
        runs += (num_hidden, num_seen)
    return tuple(runs)
