"""The radix tree against a dictionary that knows every path, over a pool of blocks as control uses it."""

import random
from itertools import count

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loopwright.control.block_pool import BlockPool
from loopwright.control.page_content import PageKey, Prefix
from loopwright.control.prefix_cache import PAGES_OF_DOUBLE_COST, PrefixCache
from loopwright.core.ids import BlockId

Path = tuple[str, tuple[PageKey, ...]]


def key(number: int, position: int = 0) -> PageKey:
    """A page of one token."""
    return (number,), (position,)


def keys(*numbers: int) -> list[PageKey]:
    return [key(number) for number in numbers]


class Model:
    """A pool and its cache beside a dictionary: which block is at which path, and who uses what."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(BlockId(number) for number in range(num_blocks))
        self.paths: dict[Path, BlockId] = {}
        self.users: list[list[BlockId]] = []
        self._prefixes: dict[Path, Prefix] = {}

    def run(self, tenant: str, path: list[PageKey]) -> None:
        """Somebody computes a context: binds what is there, takes the rest, and the cache gets to know it."""
        found = self.pool.cache.match(tenant, path)
        assert found == self._expected(tenant, path)
        self.pool.share(found)
        num_new = len(path) - len(found)
        if num_new > self.pool.num_free:
            for block in found:
                self.pool.give(block)
            return
        blocks = found + [self._take() for _ in range(num_new)]
        self.pool.keep(self._prefix(tenant, tuple(path)), blocks)
        for number, block in enumerate(blocks):
            self.paths[tenant, tuple(path[: number + 1])] = block
        self.users.append(blocks)

    def _prefix(self, tenant: str, path: tuple[PageKey, ...]) -> Prefix:
        """The same object each time: it knows where the cache had it, which may be long ago."""
        if (tenant, path) not in self._prefixes:
            one = self._prefix(tenant, path[:-1]).child(*path[-1]) if path else Prefix(tenant)
            self._prefixes[tenant, path] = one
        return self._prefixes[tenant, path]

    def end(self, number: int) -> None:
        for block in self.users.pop(number):
            self.pool.give(block)

    def drop_one(self, number: int, place: int) -> None:
        """A user lets go of one page in the middle of what it holds."""
        blocks = self.users[number]
        self.pool.give(blocks.pop(place))
        if not blocks:
            del self.users[number]

    def write(self, number: int, place: int) -> None:
        """A user is going to write into a page: only if nobody else uses it."""
        block = self.users[number][place]
        if self.pool.num_others(block) == 0:
            self.pool.disown(block)
            for path in [path for path, one in self.paths.items() if one == block]:
                self._forget(path)
            assert block not in self.pool.cache

    def check(self) -> None:
        held = [block for blocks in self.users for block in blocks]
        self.pool.check_integrity(held)
        assert self.pool.num_free == self.pool.num_total - len(set(held))
        assert self.pool.cache.num_blocks == len(self.paths)
        for tenant, path in self.paths:
            assert self.pool.cache.match(tenant, path) == self._expected(tenant, list(path))

    def _take(self) -> BlockId:
        """An empty block. What the cache gave up for it is gone, with all behind it, and nobody used it."""
        block = self.pool.take()
        used = {one for blocks in self.users for one in blocks}
        assert block not in used
        for path in [path for path, one in self.paths.items() if one not in self.pool.cache]:
            self._forget(path)
        return block

    def _forget(self, gone: Path) -> None:
        tenant, path = gone
        for other in [one for one in self.paths if one[0] == tenant and one[1][: len(path)] == path]:
            assert self.paths.pop(other) not in self.pool.cache, "what lies behind an evicted page is lost too"

    def _expected(self, tenant: str, path: list[PageKey]) -> list[BlockId]:
        found: list[BlockId] = []
        while len(found) < len(path) and (block := self.paths.get((tenant, tuple(path[: len(found) + 1])))) is not None:
            found.append(block)
        return found


TENANTS = st.sampled_from(["", "a"])
PATHS = st.lists(st.builds(key, st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=6)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model(num_blocks=12)

    @rule(tenant=TENANTS, path=PATHS)
    def run(self, tenant: str, path: list[PageKey]) -> None:
        self.model.run(tenant, path)

    @precondition(lambda self: self.model.users)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.model.end(data.draw(st.integers(0, len(self.model.users) - 1)))

    @precondition(lambda self: self.model.users)
    @rule(data=st.data(), writes=st.booleans())
    def touch_one(self, data: st.DataObject, writes: bool) -> None:
        number = data.draw(st.integers(0, len(self.model.users) - 1))
        place = data.draw(st.integers(0, len(self.model.users[number]) - 1))
        (self.model.write if writes else self.model.drop_one)(number, place)

    @invariant()
    def it_equals_the_dictionary(self) -> None:
        self.model.check()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def test_ten_thousand_random_operations_leak_no_block() -> None:
    rng, model = random.Random(4), Model(num_blocks=40)
    for number in range(10_000):
        operation = rng.random()
        if operation < 0.5 or not model.users:
            path = [key(rng.randrange(3), rng.randrange(2)) for _ in range(rng.randint(1, 9))]
            model.run(rng.choice(["", "a"]), path)
        else:
            user = rng.randrange(len(model.users))
            place = rng.randrange(len(model.users[user]))
            if operation < 0.8:
                model.end(user)
            elif operation < 0.9:
                model.write(user, place)
            else:
                model.drop_one(user, place)
        if number % 50 == 0:
            model.check()
    while model.users:
        model.end(0)
    model.check()
    assert model.pool.num_free == 40


def filled(*paths: list[PageKey]) -> PrefixCache:
    """A cache with paths that nobody uses; its blocks are numbered as they came."""
    cache, numbers = PrefixCache(), count()
    for path in paths:
        known = cache.match("", path)
        fresh = [BlockId(next(numbers)) for _ in path[len(known) :]]
        cache.insert("", path, [*known, *fresh])
        for block in fresh:
            cache.unlock(block)
    return cache


def test_the_least_recently_used_leaf_is_evicted_first_and_no_page_before_those_behind_it() -> None:
    cache = filled(keys(1, 2), keys(3, 4))
    cache.lock(BlockId(1))
    cache.unlock(BlockId(1))
    assert [cache.evict() for _ in range(4)] == [[3], [2], [1], [0]]
    cache.check_integrity()


def test_a_page_deep_in_a_context_outlives_some_shallow_ones_but_not_for_ever() -> None:
    deep = [key(7, position) for position in range(PAGES_OF_DOUBLE_COST + 1)]
    cache = filled(deep)
    survived, block = 0, 1000
    while cache.num_blocks == len(deep) + (survived > 0):
        path = keys(100 + survived)
        cache.insert("", path, [BlockId(block + survived)])
        cache.unlock(BlockId(block + survived))
        if cache.evict() != [block + survived]:
            break
        survived += 1
    assert 1 <= survived <= 3


def test_an_unlocked_page_before_a_locked_one_can_be_had_and_takes_the_locked_one_out_of_the_cache() -> None:
    cache = PrefixCache()
    cache.insert("", keys(1, 2, 3), [BlockId(0), BlockId(1), BlockId(2)])
    cache.unlock(BlockId(0))
    cache.unlock(BlockId(2))
    assert cache.evict() == [2]
    assert cache.evict() == [0]
    assert (cache.num_blocks, cache.match("", keys(1, 2))) == (0, [])
    cache.check_integrity()


def test_an_edge_is_split_where_contexts_part_and_both_ways_are_found() -> None:
    cache = filled(keys(1, 2, 3, 4), keys(1, 2, 5))
    assert cache.match("", keys(1, 2, 3, 4)) == [0, 1, 2, 3]
    assert cache.match("", keys(1, 2, 5, 6)) == [0, 1, 4]
    assert cache.match("", keys(2)) == cache.match("b", keys(1)) == []
    cache.check_integrity()


def test_other_positions_or_another_tenant_make_another_prefix() -> None:
    cache = PrefixCache()
    cache.insert("a", [key(1, 0), key(2, 1)], [BlockId(0), BlockId(1)])
    assert cache.match("a", [key(1, 0), key(2, 7)]) == [0]
    assert cache.match("b", [key(1, 0), key(2, 1)]) == []
