"""Owns which of the engine's numbered units, KV blocks or embed slots, are free. Never knows who holds one or why.

Called by the name tables, which take a unit for each new page or embed and give it back when its last user is gone.
"""

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

IdT = TypeVar("IdT", bound=int)


class Pool(Generic[IdT]):
    """A fixed set of units. Who takes one gives it back, once."""

    def __init__(self, ids: Iterable[IdT]) -> None:
        self._all = frozenset(ids)
        self._free = sorted(self._all, reverse=True)  # a stack: what was used last is warm, so it is used next

    @property
    def num_total(self) -> int:
        return len(self._all)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> IdT:
        """A free unit. The caller has looked at `num_free`."""
        return self._free.pop()

    def give(self, unit: IdT) -> None:
        """Makes a unit free again."""
        assert unit in self._all, f"unit {unit} is not of this pool"
        self._free.append(unit)

    def check_integrity(self, held: Collection[IdT]) -> None:
        """Asserts that every unit is either free or one of `held`, and none is both or twice."""
        free = set(self._free)
        assert len(free) == len(self._free), f"a unit is twice in the free list: {sorted(self._free)}"
        assert len(set(held)) == len(held), f"a unit has two holders: {sorted(held)}"
        assert free.isdisjoint(held), f"units are free and held: {sorted(free & set(held))}"
        assert free | set(held) == self._all, f"units are lost: {sorted(self._all - free - set(held))}"
