"""Owns what is known of long page lists: that the pages a call only reads are bound, distinct and full. Writes nothing.

A program that makes a call for every token names its whole context each time. The full pages before its KV length are
its base: looked up as one, held as one, and found by later writers by looking into it. So a call costs what it changes,
not what it stands on. Made for each run that is open; used when calls are issued and start.
"""

from collections.abc import Iterable, Sequence

from loopwright.control.name_table import NameTable
from loopwright.control.ordering import Page
from loopwright.core.ids import BlockId, PageName

MIN_PAGES = 16
"""Fewer are looked at one by one: it costs no more."""

_MAX_BASES = 64  # of a run; a program with more contexts than these finds them anew


class Base:
    """Pages of consecutive places from the first on, all full. Compared by identity; its lists are never written to."""

    __slots__ = ("_block_ids", "_distinct", "_num_moved", "names", "pages")

    def __init__(self, names: tuple[PageName, ...], pages: list[Page]) -> None:
        self.names, self.pages = names, pages
        self._distinct = frozenset(names)
        self._block_ids: list[BlockId] = []
        self._num_moved = -1  # of the table, when the block ids were looked up

    def __len__(self) -> int:
        return len(self.pages)

    def has_name(self, names: Iterable[PageName]) -> bool:
        """Whether one of the names is one of the base's."""
        return not self._distinct.isdisjoint(names)

    def block_ids(self, table: NameTable[PageName, BlockId]) -> Sequence[BlockId]:
        """The blocks of the pages, all of which have one."""
        if self._num_moved != table.num_moved:
            self._block_ids = [page.id for page in self.pages if page.id is not None]
            self._num_moved = table.num_moved
        assert len(self._block_ids) == len(self.pages)
        return self._block_ids


class Bases:
    """Those that a run's calls have named, by the name of their last page."""

    def __init__(self, table: NameTable[PageName, BlockId], block_size: int) -> None:
        self._table = table
        self._full = (1 << block_size) - 1
        self._found: dict[PageName, Base] = {}
        self._num_unbound = 0

    def find(self, names: Sequence[PageName], num_pages: int) -> Base | None:
        """The first `num_pages` names as a base; None if they are too few, or not all bound, distinct and full."""
        if not MIN_PAGES <= num_pages <= len(names):
            return None
        if self._num_unbound != self._table.num_unbound:
            self.forget()
        wanted = tuple(names[:num_pages])
        found = self._found.get(wanted[-1])
        if found is not None and found.names == wanted:
            return found
        before = self._found.get(wanted[-2])
        if before is not None and before.names == wanted[:-1] and not before.has_name(wanted[-1:]):
            return self._make(wanted, before.pages, wanted[-1:])
        return self._make(wanted, [], wanted) if len(set(wanted)) == num_pages else None

    def forget(self) -> None:
        """Of some page, what was known may not be so any more."""
        self._found.clear()
        self._num_unbound = self._table.num_unbound

    def _make(self, names: tuple[PageName, ...], known: list[Page], new: Sequence[PageName]) -> Base | None:
        bound = [page for name in new if (page := self._table.names.get(name)) is not None]
        pages = [page for page in bound if page.written == self._full]
        if len(pages) < len(new):
            return None
        if len(self._found) == _MAX_BASES:
            self.forget()
        base = self._found[names[-1]] = Base(names, known + pages)
        return base
