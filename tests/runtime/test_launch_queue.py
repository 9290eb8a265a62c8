"""Launches take turns with running programs and, by tenant, with one another. A launch here is time on a clock."""

import asyncio
from contextlib import suppress

from loopwright.core.clock import FakeClock
from loopwright.runtime.launch_queue import LaunchQueue

LAUNCH_S = 1.0


class Launches:
    """Launches that take a second each, in the order in which they began; `rounds` are the times of a neighbour's."""

    def __init__(self, round_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.expected: list[int] = []
        self.queue = LaunchQueue(self.clock, self.expected.append)
        self.order: list[str] = []
        self.rounds: list[float] = []
        self._round_s = round_s

    async def launch(self, tenant: str = "") -> None:
        await self.queue.turn(tenant)
        self.order.append(tenant)
        self.clock.advance(LAUNCH_S)

    async def neighbour(self) -> None:
        while True:
            self.clock.advance(self._round_s)
            self.rounds.append(self.clock.now_s())
            await asyncio.sleep(0)

    async def all_of(self, *tenants: str) -> None:
        """Launches for these tenants at once, beside the neighbour."""
        neighbour = asyncio.create_task(self.neighbour())
        await asyncio.gather(*(self.launch(tenant) for tenant in tenants))
        neighbour.cancel()
        with suppress(asyncio.CancelledError):
            await neighbour

    def longest_round_s(self) -> float:
        return max(after - before for before, after in zip(self.rounds, self.rounds[1:], strict=False))


async def test_a_running_program_waits_for_one_launch_at_a_time():
    launches = Launches()
    await launches.all_of(*[""] * 50)
    assert len(launches.order) == 50
    assert launches.longest_round_s() == LAUNCH_S


async def test_launches_get_as_much_time_as_all_others_together():
    launches = Launches(round_s=8.0)
    await launches.all_of(*[""] * 41)
    assert launches.longest_round_s() == 8.0 + 8 * LAUNCH_S
    assert len(launches.rounds) < 12  # and not 41: a busy machine still launches


async def test_tenants_take_turns():
    launches = Launches()
    await launches.all_of("a", "a", "a", "a", "b", "c", "b")
    assert launches.order == ["a", "a", "b", "c", "a", "b", "a"]


async def test_of_one_tenant_the_first_comes_first():
    launches, begun = Launches(), []

    async def launch(number: int) -> None:
        await launches.launch("a")
        begun.append(number)

    await asyncio.gather(*map(launch, range(9)))
    assert begun == list(range(9))


async def test_a_launch_alone_begins_at_once():
    launches = Launches()
    for _ in range(3):
        turn = launches.queue.turn("")
        with suppress(StopIteration):
            turn.send(None)
            raise AssertionError("it waited")
        for _ in range(3):
            await asyncio.sleep(0)


async def test_who_gives_up_waiting_takes_no_turn():
    launches = Launches()
    tasks = [asyncio.create_task(launches.launch(name)) for name in "abcd"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert launches.order == ["a", "d"]
    await asyncio.sleep(0)
    assert launches.queue.num_waiting == 0
    await launches.launch("e")
    assert launches.order[-1] == "e"


async def test_who_asks_is_told_how_many_are_to_come_and_of_their_end():
    launches = Launches()
    await launches.all_of("a", "b", "a")
    for _ in range(3):
        await asyncio.sleep(0)
    assert launches.expected == [1, 2, 2, 1, 0]


async def test_a_launch_alone_is_nothing_to_expect():
    launches = Launches()
    await launches.launch()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(launches.expected)
