"""How many instances wait for a run: few at first, more after runs that found none, and never more than may."""

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import pytest

from loopwright.runtime.sandboxes.instance_pool import InstancePool


class Instance:
    """One that nothing runs in."""

    def close(self) -> None:
        pass


class Rig:
    """A pool whose instances cost nothing, and who waits until its thread has done what it was asked."""

    def __init__(self, max_parked: int) -> None:
        def same(instance: Any) -> Any:
            return instance

        self.pool = InstancePool(cast("Any", Instance), same, max_parked)

    def settled(self) -> int:
        """How many are parked when all that was asked for is made."""
        done = SimpleQueue[None]()
        self.pool._work.put(lambda: done.put(None))
        done.get()
        self.pool.check_integrity()
        return self.pool.num_parked

    def burst(self, size: int) -> None:
        for instance in [self.pool.take() for _ in range(size)]:
            self.pool.discard(instance)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(8)
    yield made
    made.pool.close()


def test_two_wait_at_first_and_one_run_after_the_other_needs_no_more(rig: Rig) -> None:
    assert rig.settled() == 2
    for _ in range(5):
        rig.burst(1)
        assert rig.settled() == 2


def test_each_time_that_a_run_finds_none_twice_as_many_wait_up_to_the_limit(rig: Rig) -> None:
    rig.settled()
    rig.burst(3)
    assert rig.settled() == 4
    rig.burst(20)
    assert rig.settled() == 8


def test_a_limit_below_two_is_kept() -> None:
    small = Rig(1)
    try:
        assert small.settled() == 1
    finally:
        small.pool.close()
