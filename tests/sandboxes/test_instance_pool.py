"""How many instances wait for a run, of which kind, and when they are made: never more than may."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event
from typing import Any, cast

import pytest
from wasmtime import WasmtimeError

from loopwright.runtime.sandboxes.instance_pool import InstancePool


class Instance:
    """One that nothing runs in."""

    is_warm = False
    is_closed = False

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class Rig:
    """A pool whose instances cost nothing, and who waits until its thread has done what it was asked."""

    def __init__(self, max_parked: int, quiet_s: float = 1000.0) -> None:
        self.is_idle = True
        self.made: list[Instance] = []
        self.num_failures = 0  # still to come
        self.failure: Exception = WasmtimeError("no room")
        make, warm = cast("Any", self.make), cast("Any", self.warm)
        self.pool = InstancePool(make, warm, max_parked, lambda: self.is_idle, quiet_s)

    def make(self) -> Instance:
        if self.num_failures:
            self.num_failures -= 1
            raise self.failure
        self.made.append(Instance())
        return self.made[-1]

    def warm(self, instance: Instance) -> Instance:
        instance.is_warm = True
        return instance

    def settled(self) -> tuple[int, int]:
        """How many are parked when all that is to be made is made: warm ones, plain ones."""
        while True:
            done = SimpleQueue[None]()
            self.pool._work.put(lambda done=done: done.put(None))  # type: ignore[misc]
            done.get()
            self.pool.check_integrity()
            if self.pool.is_settled:
                return self.pool.num_warmed, self.pool.num_plain

    def taken(self, size: int, *, warm: bool = True) -> list[Any]:
        """So many at once: the thread has no time to make any meanwhile."""
        self.is_idle = False
        is_over = Event()
        self.pool._work.put(cast("Any", is_over.wait))
        taken = [self.pool.take(warm=warm) for _ in range(size)]
        is_over.set()
        return taken

    def burst(self, size: int, *, warm: bool = True) -> None:
        taken = self.taken(size, warm=warm)
        self.is_idle = True
        for instance in taken:
            self.pool.discard(instance)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(8)
    yield made
    made.pool.close()


def test_two_wait_at_first_and_one_run_after_the_other_needs_no_more(rig: Rig) -> None:
    assert rig.settled() == (2, 0)
    for _ in range(5):
        rig.burst(1)
        assert rig.settled() == (2, 0)


def test_twice_as_many_wait_as_came_at_once_up_to_the_limit(rig: Rig) -> None:
    rig.settled()
    rig.burst(3)
    assert rig.settled() == (6, 2)
    rig.burst(20)
    assert rig.settled() == (8, 16)


def test_runs_that_come_while_others_are_live_count_as_one_burst(rig: Rig) -> None:
    rig.settled()
    live = []
    for _ in range(3):
        live += rig.taken(1)
        rig.settled()
    rig.is_idle = True
    for instance in live:
        rig.pool.discard(instance)
    assert rig.settled()[0] == 6


def test_when_nobody_comes_what_a_burst_had_made_is_closed_again_and_made_for_the_next() -> None:
    quiet = Rig(8, quiet_s=0.0)
    try:
        quiet.settled()
        live = quiet.taken(20)
        while len(quiet.pool._warmed.waiting) < 4:  # half of what may wait: so many are made beside live runs
            quiet.settled()
        assert quiet.settled() == (4, 8), "none is closed while runs are live"
        quiet.is_idle = True
        for instance in live:
            quiet.pool.discard(instance)
        while quiet.settled() != (2, 0):
            pass
        assert sum(not one.is_closed for one in quiet.made) == 2
        live = quiet.taken(3)
        assert [one.is_closed for one in live] == [False] * 3
        quiet.is_idle = True
        for instance in live:
            quiet.pool.discard(instance)
    finally:
        quiet.pool.close()
    assert all(one.is_closed for one in quiet.made)


def test_who_comes_at_the_end_of_a_quiet_time_finds_all_that_waited(rig: Rig) -> None:
    """The thread has slept, and was told of nothing, since nothing was missing."""
    rig.burst(20)
    assert rig.settled() == (8, 16)
    rig.is_idle = False
    rig.pool._give_back()
    assert (rig.pool.num_warmed, rig.pool.num_plain) == (8, 16)
    rig.is_idle = True
    rig.pool._give_back()
    assert rig.settled() == (4, 8)


def test_a_limit_below_two_is_kept() -> None:
    small = Rig(1)
    try:
        assert small.settled() == (1, 0)
    finally:
        small.pool.close()


def test_while_runs_are_live_none_is_made_until_fewer_than_half_are_left(rig: Rig) -> None:
    rig.settled()
    rig.burst(4)
    assert rig.settled()[0] == 8
    live = rig.taken(4)
    assert rig.settled()[0] == 4
    live += rig.taken(2)
    assert rig.settled()[0] == 4, "half of them again, and no more"
    rig.is_idle = True
    for instance in live:
        rig.pool.discard(instance)
    assert rig.settled()[0] == 8


def test_who_asks_for_a_plain_one_gets_a_warm_one_only_where_no_other_waits(rig: Rig) -> None:
    rig.settled()
    assert [one.is_warm for one in rig.taken(2, warm=False)] == [True, True]
    assert rig.settled() == (2, 2), "half of each kind"
    assert [one.is_warm for one in rig.taken(2, warm=False)] == [False, False]
    assert [one.is_warm for one in rig.taken(2)] == [True, True]


@pytest.mark.parametrize("failure", [WasmtimeError("no room"), MemoryError("no room")])
def test_after_a_failure_nothing_is_made_until_somebody_comes(
    rig: Rig, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    rig.settled()
    (live,) = rig.taken(1)
    rig.failure = failure
    rig.num_failures = 1
    rig.is_idle = True
    rig.pool._work.put(lambda: None)
    assert rig.settled() == (1, 0)
    assert "cannot park an instance" in caplog.text
    rig.pool.discard(live)
    assert rig.settled() == (2, 0)
