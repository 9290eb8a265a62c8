"""Owns which of the engine's numbered units, KV blocks or embed slots, are free. Never knows who holds one or why.

Called by the name tables, which take a unit for each new page or embed and give it back when its last user is gone, and
by the exports, which share one among runs.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

IdT = TypeVar("IdT", bound=int)


class Pool(Generic[IdT]):
    """A fixed set of units. Who takes or shares one gives it back, once."""

    def __init__(self, ids: Iterable[IdT]) -> None:
        self._all = frozenset(ids)
        self._free = sorted(self._all, reverse=True)  # a stack: what was used last is warm, so it is used next
        self._num_sharing: dict[IdT, int] = {}  # holders beyond the first, of units that have some

    @property
    def num_total(self) -> int:
        return len(self._all)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> IdT:
        """A free unit. The caller has looked at `num_free`."""
        return self._free.pop()

    def share(self, unit: IdT) -> None:
        """One more holder of a unit that is taken."""
        self._num_sharing[unit] = self._num_sharing.get(unit, 0) + 1

    def is_shared(self, unit: IdT) -> bool:
        """Whether the unit has more than one holder."""
        return unit in self._num_sharing

    def give(self, unit: IdT) -> None:
        """Ends one hold; the last one makes the unit free again."""
        assert unit in self._all, f"unit {unit} is not of this pool"
        if num := self._num_sharing.pop(unit, 0):
            if num > 1:
                self._num_sharing[unit] = num - 1
            return
        self._free.append(unit)

    def check_integrity(self, held: Iterable[IdT]) -> None:
        """Asserts that every unit is either free or one of `held`, as often there as it has holders."""
        free, holders = set(self._free), Counter(held)
        assert len(free) == len(self._free), f"a unit is twice in the free list: {sorted(self._free)}"
        assert free.isdisjoint(holders), f"units are free and held: {sorted(free & set(holders))}"
        assert free | set(holders) == self._all, f"units are lost: {sorted(self._all - free - set(holders))}"
        sharing = {unit: num - 1 for unit, num in holders.items() if num > 1}
        assert sharing == self._num_sharing, f"holders do not add up: {sharing} are there, {self._num_sharing} counted"
