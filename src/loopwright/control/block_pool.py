"""Owns how many pages use each KV block, and what the prefix cache keeps when none does. Never knows pages or calls.

Called by the name tables, and by `prefixes` for what is shared. A cached block that nobody uses counts as free: it is
emptied when no other is left.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from loopwright.control.page_content import PageKey, Prefix
from loopwright.control.pool import Pool
from loopwright.control.prefix_cache import PrefixCache
from loopwright.core.ids import BlockId


class BlockPool(Pool[BlockId]):
    """The blocks of the engine. One may have many users, of any run; it is given back once by each."""

    def __init__(self, ids: Iterable[BlockId]) -> None:
        super().__init__(ids)
        self.cache = PrefixCache()
        self.num_evicted = 0  # blocks that the cache gave up for others
        self._num_users: dict[BlockId, int] = {}  # of those that are used

    @property
    def num_free(self) -> int:
        return len(self._free) + self.cache.num_unlocked

    def take(self) -> BlockId:
        """An empty block, for one user. The caller has looked at `num_free`."""
        if not self._free:
            evicted = self.cache.evict()
            self.num_evicted += len(evicted)
            self._empty(evicted)
        block = self._free.pop()
        self._num_users[block] = 1
        return block

    def share(self, blocks: Sequence[BlockId]) -> None:
        """Gives each block one user more. They are cached or in use."""
        for block in blocks:
            num_users = self._num_users.get(block, 0)
            if not num_users:
                self.cache.lock(block)
            self._num_users[block] = num_users + 1

    def give(self, unit: BlockId) -> None:
        """One user less."""
        num_users = self._num_users.pop(unit, 0)
        assert num_users, f"nobody uses block {unit}"
        if num_users > 1:
            self._num_users[unit] = num_users - 1
            return
        if unit in self.cache:
            self.cache.unlock(unit)
        else:
            super().give(unit)

    def num_others(self, block: BlockId) -> int:
        """Users of the block but one."""
        return self._num_users.get(block, 0) - 1

    def num_unkept(self, prefix: Prefix) -> int:
        """How many of the prefix's last pages the cache may not have."""
        return len(self._unkept(prefix)[1])

    def keep(self, prefix: Prefix, blocks: Sequence[BlockId]) -> None:
        """Has the cache know the prefix. `blocks`, all in use, hold its last pages, at least `num_unkept` of them."""
        behind, keys = self._unkept(prefix)
        prefix.mark = self.cache.insert(prefix.tenant, keys, blocks[len(blocks) - len(keys) :], behind)

    def disown(self, block: BlockId) -> None:
        """Has the cache forget the block, for its one user is going to write there."""
        assert self.num_others(block) == 0, f"block {block} has {self.num_others(block) + 1} users"
        if block in self.cache:
            self._empty(self.cache.forget(block))

    def check_integrity(self, held: Collection[BlockId]) -> None:
        """Asserts that `held`, with a block once for each user, and the cache's blocks and the free ones are all."""
        assert Counter(held) == self._num_users, "users of blocks do not add up"
        self.cache.check_integrity()
        num_unlocked = sum(block not in self._num_users for block in self._all if block in self.cache)
        assert num_unlocked == self.cache.num_unlocked, "locks do not add up"
        super().check_integrity({*held, *(block for block in self._all if block in self.cache)})

    def _unkept(self, prefix: Prefix) -> tuple[BlockId | None, list[PageKey]]:
        """The block of the last page that the cache is known to have, and the pages behind that."""
        keys: list[PageKey] = []
        while prefix.parent is not None:
            if prefix.mark is not None and self.cache.has(prefix.mark):
                return prefix.mark[0], keys[::-1]
            keys.append(prefix.key)
            prefix = prefix.parent
        return None, keys[::-1]

    def _empty(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            super().give(block)
