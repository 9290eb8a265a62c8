"""A loop that looks for its input: how long, what it finds, and when it sleeps. On a clock that naps advance."""

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from loopwright.core import eager_loop
from loopwright.core.eager_loop import EagerLoop, EagerSelector, Expecting, looking

NAP_S = eager_loop.NAP_S


class Clock:
    """Stands for the module `time`. What is due happens in a nap."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for one in [one for one in self.due if one[0] <= self.now_s]:
            self.due.remove(one)
            one[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(eager_loop, "time", clock)
    return clock


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, other = socket.socketpair()
    with ours, other:
        yield ours, other


@pytest.fixture
def selector(pair: tuple[socket.socket, socket.socket]) -> Iterator[EagerSelector]:
    with EagerSelector() as selector:
        selector.register(pair[0], 1)  # to be read
        yield selector


def test_it_finds_by_looking_what_comes_in_time(
    clock: Clock, selector: EagerSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    selector.until_s = clock.now_s + 100 * NAP_S
    clock.due.append((clock.now_s + 6.5 * NAP_S, lambda: pair[1].send(b"x")))
    (found,) = selector.select(None)
    assert found[0].fileobj is pair[0]
    assert selector.num_looks == 7
    assert selector.until_s > clock.now_s, "more may be due"


def test_what_is_there_already_needs_no_look(
    clock: Clock, selector: EagerSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    selector.until_s = clock.now_s + 1
    pair[1].send(b"x")
    assert len(selector.select(None)) == 1
    assert selector.num_looks == 0


def test_it_looks_no_longer_than_it_was_told_to_and_then_sleeps(
    clock: Clock, selector: EagerSelector, pair: tuple[socket.socket, socket.socket]
) -> None:
    selector.until_s = clock.now_s + 10.5 * NAP_S
    clock.due.append((clock.now_s + 10.9 * NAP_S, lambda: pair[1].send(b"x")))  # in the nap that is the last
    assert len(selector.select(None)) == 1
    assert selector.num_looks == 11
    assert selector.until_s == 0.0
    before = selector.num_looks
    assert len(selector.select(None)) == 1
    assert selector.num_looks == before, "nobody has asked for more"


def test_timers_are_in_time_while_it_looks_and_afterwards(clock: Clock, selector: EagerSelector) -> None:
    selector.until_s = clock.now_s + 100 * NAP_S
    assert selector.select(3.5 * NAP_S) == []
    assert selector.num_looks == 4
    assert selector.until_s, "it goes on behind the timer"
    assert selector.select(0) == []
    assert selector.num_looks == 4, "who has other work does not look for more"
    selector.until_s = clock.now_s + 2.5 * NAP_S
    assert selector.select(20 * NAP_S) == []
    assert selector.num_looks == 7, "the rest of the time it slept"


async def expected(clock: Clock) -> list[bool]:
    """Whether the loop looked behind each of these."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, EagerLoop)
    expecting, looks = Expecting(0.008), []

    def ask(takes_s: float) -> None:
        expecting.asked()
        looks.append(loop.selector.until_s > clock.now_s)
        clock.now_s += takes_s
        expecting.answered()
        assert loop.selector.until_s == 0.0

    for takes_s in (0.005, 0.005, 0.009, 0.001, 0.001):
        ask(takes_s)
    expecting.answered()  # of something else
    ask(0.0)
    return looks


def test_answers_are_looked_for_as_long_as_they_come_soon(clock: Clock) -> None:
    with asyncio.Runner(loop_factory=EagerLoop) as runner:
        assert runner.run(expected(clock)) == [False, True, True, False, True, True]


def test_it_looks_within_a_block_and_no_longer(clock: Clock) -> None:
    async def look() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EagerLoop)
        with looking(3.0):
            assert loop.selector.until_s == clock.now_s + 3.0
        assert loop.selector.until_s == 0.0

    with asyncio.Runner(loop_factory=EagerLoop) as runner:
        runner.run(look())


def test_another_loop_looks_for_nothing() -> None:
    async def ask() -> None:
        with looking(1.0):
            await asyncio.sleep(0)
        expecting = Expecting(0.008)
        expecting.asked()
        expecting.answered()
        expecting.asked()

    asyncio.run(ask())


def test_a_loop_that_looks_hears_other_threads_and_its_timers() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, EagerLoop)
        loop.look_for(60.0)
        timer = loop.create_future()
        loop.call_later(0.001, timer.set_result, "timer")
        heard = [await asyncio.to_thread(lambda: "thread"), await timer]
        loop.look_no_more()
        return heard

    with asyncio.Runner(loop_factory=EagerLoop) as runner:
        assert runner.run(main()) == ["thread", "timer"]
