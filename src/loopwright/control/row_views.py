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

    __slots__ = ("_block_size", "_border", "_hidden", "_positions", "_slid", "_window")

    def __init__(self, block_size: int, hidden: int, window: KvWindow | None) -> None:
        self._block_size = block_size
        self._hidden = hidden
        self._window = window
        self._positions: list[int] = [] if window is None else list(window.positions)  # of each place
        self._border = self._slid = 0  # the last window's border, and the places that it hides

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
        window, size = self._window, self._block_size
        assert window is not None
        border = max(0, (position + 1 - window.size) // size * size)
        if border != self._border:
            self._border = border
            slid = (place for place, one in enumerate(self._positions) if window.sinks <= one < border)
            self._slid = sum(1 << place for place in slid)
        return self._slid

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
            seen = seen & (1 << block * size) - 1 | seen >> (block + 1) * size << block * size
        return _run_lengths(seen)


def _without(block_ids: Sequence[BlockId], dropped: Collection[int]) -> list[BlockId]:
    gone = set(dropped)
    return [block_id for place, block_id in enumerate(block_ids) if place not in gone]


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
