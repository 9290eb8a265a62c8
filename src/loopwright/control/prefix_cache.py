"""Owns the radix tree from prefixes to the blocks that hold their KV. Never takes or frees one: the block pool does.

An edge is a run of full pages. A block that somebody uses is locked; the others may be evicted, and are when the pool
has no empty block left.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from loopwright.control.page_content import CacheMark, PageKey
from loopwright.core.ids import BlockId

PAGES_OF_DOUBLE_COST = 256
"""So far into a context a page costs twice as much to compute as the first, for all that its tokens have to look at."""


class _Node:
    """One edge and what lies below it. A root, of one tenant, has an empty edge."""

    __slots__ = ("blocks", "children", "keys", "parent", "tenant", "used", "worth")

    def __init__(self, parent: "_Node | None", keys: list[PageKey], blocks: list[BlockId], tenant: str) -> None:
        self.parent, self.keys, self.blocks, self.tenant = parent, keys, blocks, tenant
        self.children: dict[PageKey, _Node] = {}  # by the first page of their edge
        self.used = 0  # when somebody last did
        self.worth = 0.0  # what is worth least is evicted first

    def place_of(self, block: BlockId) -> int:
        """Where the block stands in the edge: mostly at its end."""
        return len(self.blocks) - 1 if self.blocks[-1] == block else self.blocks.index(block)


class PrefixCache:
    """Blocks by tenant and by the tokens and positions of all full pages up to and with theirs.

    What goes first is decided as by GreedyDual (Young, "On-line caching as cache size varies", 1991): a page is worth
    what it would cost to compute again, on top of the worth of what was last evicted when it was last used; so what is
    costly stays longer, but not for ever. Among equals the least recently used goes first, and no page before those
    behind it."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[BlockId, _Node] = {}
        self._numbers: dict[BlockId, int] = {}  # of each block, the number of its coming
        self._unlocked: set[BlockId] = set()
        self._heap: list[tuple[float, int, int, _Node]] = []  # every leaf whose last block is unlocked; and stale ones
        self._num_uses = self._num_pushes = self._num_added = 0
        self._evicted_worth = 0.0

    def __contains__(self, block: BlockId) -> bool:
        return block in self._nodes

    @property
    def num_blocks(self) -> int:
        return len(self._nodes)

    @property
    def num_unlocked(self) -> int:
        """Blocks that nobody uses: as good as free."""
        return len(self._unlocked)

    def match(self, tenant: str, keys: Sequence[PageKey]) -> list[BlockId]:
        """The blocks of as many of the first pages as are here. Changes nothing."""
        found: list[BlockId] = []
        node = self._roots.get(tenant)
        while node is not None and len(found) < len(keys):
            node = node.children.get(keys[len(found)])
            if node is not None:
                num_common = _num_common(node.keys, 0, keys, len(found))
                found += node.blocks[:num_common]
                if num_common < len(node.keys):
                    break
        return found

    def has(self, mark: CacheMark) -> bool:
        """Whether what `insert` returned the mark for is here, under that mark."""
        block, number = mark
        return self._numbers.get(block) == number

    def insert(
        self, tenant: str, keys: Sequence[PageKey], blocks: Sequence[BlockId], behind: BlockId | None = None
    ) -> CacheMark:
        """Adds pages: from the first on, or those behind a cached block. Pages that are here already stay as they are;
        added blocks are in use. Returns the mark of the last page. What lies before `behind` is not looked at."""
        if behind is None:
            node, place = self._roots.setdefault(tenant, _Node(None, [], [], tenant)), 0
        else:
            node = self._nodes[behind]
            place = node.place_of(behind) + 1
        done = 0
        while True:
            num_common = _num_common(node.keys, place, keys, done)
            done, place = done + num_common, place + num_common
            if done == len(keys):
                self._use(node)
                return self._mark(node.blocks[place - 1])
            if place < len(node.keys):
                node = self._split(node, place)
            if (child := node.children.get(keys[done])) is None:
                break
            node, place = child, 0
        self._add(node, keys[done:], blocks[done:])
        return self._mark(blocks[-1])

    def lock(self, block: BlockId) -> None:
        """Somebody uses the block from now on."""
        self._unlocked.remove(block)
        self._use(self._nodes[block])

    def unlock(self, block: BlockId) -> None:
        """Nobody uses the block any more."""
        assert block not in self._unlocked, f"block {block} is unlocked already"
        self._unlocked.add(block)
        self._push_if_leaf(self._nodes[block])

    def evict(self) -> list[BlockId]:
        """Takes out the unlocked block that is worth least, and returns it. Not if none is unlocked.

        If every unlocked block has locked ones behind it, those leave the cache too: nobody could find them any more.
        Of what leaves, the unlocked are returned."""
        while self._heap:
            worth, used, _, node = heappop(self._heap)
            if not self._is_evictable(node):
                continue
            if used != node.used:
                self._push_if_leaf(node)
                continue
            self._evicted_worth = max(self._evicted_worth, worth)
            return self.forget(node.blocks[-1])
        return self.forget(min(self._unlocked, key=lambda block: self._nodes[block].used))

    def forget(self, block: BlockId) -> list[BlockId]:
        """Takes out a block and all that lie behind it. Returns the unlocked of them, which nobody has now."""
        node = self._nodes[block]
        place = node.place_of(block)
        gone = [*node.blocks[place:], *(one for child in node.children.values() for one in _blocks_below(child))]
        parent = node.parent
        assert parent is not None, "a root has no blocks"
        if place == 0:
            del parent.children[node.keys[0]]
            self._push_if_leaf(parent)
        del node.blocks[place:], node.keys[place:]
        node.children.clear()
        self._push_if_leaf(node)
        if parent.parent is None and not parent.children:
            del self._roots[parent.tenant]
        for one in gone:
            del self._nodes[one], self._numbers[one]
        free = [one for one in gone if one in self._unlocked]
        self._unlocked.difference_update(free)
        return free

    def check_integrity(self) -> None:
        """Asserts that the tree, the index and the queue of what goes first agree."""
        listed = {id(node) for worth, used, _, node in self._heap}
        found: list[BlockId] = []
        for tenant, root in self._roots.items():
            assert root.children, f"nothing is left of tenant {tenant!r}"
            assert not root.keys
            for node in _below(root):
                assert node.tenant == tenant
                assert len(node.keys) == len(node.blocks) > 0
                assert all(child.keys[0] == key and child.parent is node for key, child in node.children.items())
                assert not self._is_evictable(node) or id(node) in listed, "a block that could go is not listed"
                assert all(self._nodes[block] is node for block in node.blocks)
                found += node.blocks
        assert len(found) == len(self._nodes), f"{len(self._nodes)} blocks counted, {len(found)} in the tree"
        assert self._numbers.keys() == self._nodes.keys(), "not every block is numbered"
        assert len(set(found)) == len(found), "a block is at two places"
        assert self._unlocked <= self._nodes.keys(), "unlocked blocks are not in the tree"

    def _add(self, node: _Node, keys: Sequence[PageKey], blocks: Sequence[BlockId]) -> None:
        """Adds pages behind the end of an edge, where they are not."""
        if node.children or node.parent is None:
            child = _Node(node, [], [], node.tenant)
            node.children[keys[0]] = child
            node = child
        node.keys += keys
        node.blocks += blocks
        for block in blocks:
            assert block not in self._nodes, f"block {block} is in the cache already"
            self._num_added += 1
            self._nodes[block], self._numbers[block] = node, self._num_added
        self._use(node)

    def _mark(self, block: BlockId) -> CacheMark:
        return block, self._numbers[block]

    def _split(self, node: _Node, num_pages: int) -> _Node:
        """Cuts an edge in two. Returns the upper part, of `num_pages`."""
        parent = node.parent
        assert parent is not None
        upper = _Node(parent, node.keys[:num_pages], node.blocks[:num_pages], node.tenant)
        upper.used, upper.worth = node.used, node.worth
        parent.children[upper.keys[0]] = upper
        del node.keys[:num_pages], node.blocks[:num_pages]
        node.parent = upper
        upper.children[node.keys[0]] = node
        for block in upper.blocks:
            self._nodes[block] = upper
        return upper

    def _use(self, node: _Node) -> None:
        self._num_uses += 1
        node.used = self._num_uses
        node.worth = self._evicted_worth + 1 + _depth(node) / PAGES_OF_DOUBLE_COST

    def _is_evictable(self, node: _Node) -> bool:
        return bool(node.blocks) and not node.children and node.blocks[-1] in self._unlocked

    def _push_if_leaf(self, node: _Node) -> None:
        if not self._is_evictable(node):
            return
        self._num_pushes += 1
        heappush(self._heap, (node.worth, node.used, self._num_pushes, node))
        if len(self._heap) > 4 * len(self._nodes) + 64:  # mostly stale
            nodes = {id(entry[3]): entry[3] for entry in self._heap if self._is_evictable(entry[3])}
            self._heap = [(one.worth, one.used, number, one) for number, one in enumerate(nodes.values())]
            heapify(self._heap)


def _num_common(edge: Sequence[PageKey], place: int, keys: Sequence[PageKey], start: int) -> int:
    """How many pages of the edge from `place` on are those of `keys` from `start` on."""
    num, max_num = 0, min(len(edge) - place, len(keys) - start)
    while num < max_num and edge[place + num] == keys[start + num]:
        num += 1
    return num


def _depth(node: _Node) -> int:
    """How many pages lie before the end of the node's edge."""
    depth = 0
    one: _Node | None = node
    while one is not None:
        depth += len(one.keys)
        one = one.parent
    return depth


def _below(node: _Node) -> Iterator[_Node]:
    waiting = list(node.children.values())
    while waiting:
        one = waiting.pop()
        yield one
        waiting += one.children.values()


def _blocks_below(node: _Node) -> Iterator[BlockId]:
    yield from node.blocks
    for one in _below(node):
        yield from one.blocks
