"""Topics and queues: what reaches whom, in which order, and that nothing is lost, doubled or left behind."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from loopwright.core.errors import BadRequest, Cancelled, LimitExceeded, NotFound
from loopwright.runtime import channels as module
from loopwright.runtime.channels import ChannelMember, Channels


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def values(raws: list[msgspec.Raw]) -> list[Any]:
    return [msgspec.json.decode(one) for one in raws]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def turns() -> None:
    """Lets everything go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def pulled(member: ChannelMember, number: int) -> Any:
    value = msgspec.json.decode(await member.pull(number, "jobs"))
    member.settle(number, is_taken=True)
    return value


def test_a_subscriber_gets_what_is_broadcast_after_it_subscribed_in_order() -> None:
    async def scenario() -> None:
        channels = Channels()
        first, second = channels.join(), channels.join()
        assert channels.broadcast("room", raw("nobody hears")) == 0
        first.subscribe(1, "room", 10)
        assert channels.broadcast("room", raw(1)) == 1
        second.subscribe(1, "room", 10)
        first.subscribe(2, "other", 10)
        assert channels.broadcast("room", raw(2)) == 2
        channels.check_integrity()
        number, messages = await first.next_messages(1, 0)
        assert (number, values(messages)) == (0, [1, 2])
        assert values((await second.next_messages(1, 0))[1]) == [2]
        for member in (first, second):
            member.leave()
        assert channels.is_empty

    run(scenario())


def test_messages_stay_until_the_subscriber_says_that_it_has_them() -> None:
    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        member.subscribe(1, "room", 10)
        for value in range(4):
            channels.broadcast("room", raw(value))
        assert values((await member.next_messages(1, 0))[1]) == [0, 1, 2, 3]
        assert values((await member.next_messages(1, 0))[1]) == [0, 1, 2, 3]  # the answer got lost, say
        number, messages = await member.next_messages(1, 3)
        assert (number, values(messages)) == (3, [3])
        waiting = asyncio.create_task(member.next_messages(1, 4))
        await turns()
        assert not waiting.done()
        waiting.cancel()
        channels.broadcast("room", raw(4))
        number, messages = await member.next_messages(1, 4)
        assert (number, values(messages)) == (4, [4])

    run(scenario())


def test_a_full_subscription_keeps_the_newest_and_tells_by_number_what_went() -> None:
    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        member.subscribe(1, "room", 3)
        for value in range(8):
            channels.broadcast("room", raw(value))
            channels.check_integrity()
        number, messages = await member.next_messages(1, 0)
        assert (number, values(messages)) == (5, [5, 6, 7])

    run(scenario())


def test_a_subscription_is_bounded_in_bytes_too() -> None:
    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        member.subscribe(1, "room", 4096)
        large = "x" * (module.MAX_VALUE_BYTES - 2)
        for _ in range(9):
            channels.broadcast("room", raw(large))
            channels.check_integrity()
        number, messages = await member.next_messages(1, 0)
        assert len(messages) == module.MAX_BUFFER_BYTES // module.MAX_VALUE_BYTES
        assert number == 9 - len(messages)

    run(scenario())


def test_a_wait_for_messages_ends_with_its_subscription() -> None:
    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        member.subscribe(1, "room", 3)
        waiting = asyncio.create_task(member.next_messages(1, 0))
        await turns()
        member.unsubscribe(1)
        with pytest.raises(Cancelled, match="'room'"):
            await waiting
        with pytest.raises(NotFound, match="no subscription 1"):
            await member.next_messages(1, 0)
        assert channels.broadcast("room", raw(1)) == 0
        channels.check_integrity()

    run(scenario())


def test_values_go_to_one_each_in_the_order_of_pushes_and_of_pulls() -> None:
    async def scenario() -> None:
        channels = Channels()
        first, second = channels.join(), channels.join()
        for value in "abc":
            channels.push("jobs", raw(value))
        assert [await pulled(first, 1), await pulled(second, 1), await pulled(first, 2)] == ["a", "b", "c"]
        waiting = [asyncio.create_task(pulled(member, 9 + n)) for n, member in enumerate((second, first, second))]
        await turns()
        channels.check_integrity()
        for value in "def":
            channels.push("jobs", raw(value))
        assert [await one for one in waiting] == ["d", "e", "f"]
        channels.check_integrity()
        first.leave()
        second.leave()
        assert channels.is_empty

    run(scenario())


def test_a_pull_that_is_cancelled_loses_nothing_whenever_that_happens() -> None:
    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        early = asyncio.create_task(pulled(member, 1))
        await turns()
        early.cancel()  # before there is anything
        await turns()
        late = asyncio.create_task(pulled(member, 2))
        await turns()
        channels.push("jobs", raw("a"))
        channels.push("jobs", raw("b"))
        late.cancel()  # after it was lent the value, and before the task heard of it
        await turns()
        assert late.cancelled()
        channels.check_integrity()
        assert [await pulled(member, 3), await pulled(member, 4)] == ["a", "b"]

    run(scenario())


def test_what_was_pulled_and_not_settled_is_first_again_when_its_run_ends() -> None:
    async def scenario() -> None:
        channels = Channels()
        careless, honest = channels.join(), channels.join()
        for value in range(4):
            channels.push("jobs", raw(value))
        for number in range(3):
            await careless.pull(number, "jobs")
        careless.settle(1, is_taken=True)
        careless.settle(1, is_taken=False)  # too late: it is settled
        careless.leave()
        channels.check_integrity()
        assert [await pulled(honest, n) for n in range(3)] == [0, 2, 3]
        honest.leave()
        assert channels.is_empty

    run(scenario())


def test_queues_have_a_limit_that_counts_what_is_lent_and_names_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUES_BYTES", 3 * (module.ITEM_OVERHEAD_BYTES + 1))

    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        for value in range(3):
            channels.push("jobs", raw(value))
        await member.pull(1, "jobs")
        with pytest.raises(LimitExceeded, match="limit is 387") as caught:
            channels.push("other", raw(3))
        assert "2 values in 'jobs'" in caught.value.hint
        channels.check_integrity()
        member.settle(1, is_taken=True)
        channels.push("other", raw(3))

    run(scenario())


def test_numbers_are_used_once_and_are_bounded() -> None:
    async def scenario() -> None:
        channels = Channels()
        member = channels.join()
        member.subscribe(1, "room", 1)
        with pytest.raises(BadRequest, match="subscription 1"):
            member.subscribe(1, "room", 1)
        for number in range(2, module.MAX_SUBSCRIPTIONS + 1):
            member.subscribe(number, "room", 1)
        with pytest.raises(LimitExceeded, match="256 subscriptions; the limit is 256"):
            member.subscribe(9999, "room", 1)
        for number in range(module.MAX_TICKETS):
            channels.push("jobs", raw(number))
            await member.pull(number, "jobs")
        with pytest.raises(BadRequest, match="ticket 5"):
            await member.pull(5, "jobs")
        with pytest.raises(LimitExceeded, match="1024 tickets; the limit is 1024"):
            await member.pull(9999, "jobs")
        member.leave()
        channels.check_integrity()

    run(scenario())


class Crowd:
    """Members that push, pull, give up, refuse and leave at random, and what they have taken."""

    def __init__(self, seed: int) -> None:
        self.channels = Channels()
        self.taken: list[int] = []
        self.num_pushed = 0
        self.chance = random.Random(seed)
        self.members = [self.channels.join() for _ in range(4)]
        self._pulls: list[tuple[ChannelMember, int, asyncio.Task[msgspec.Raw]]] = []

    def push(self, _: int) -> None:
        self.channels.push("jobs", raw(self.num_pushed))
        self.num_pushed += 1

    def pull(self, number: int) -> None:
        member = self.chance.choice(self.members)
        self._pulls.append((member, number, asyncio.create_task(member.pull(number, "jobs"))))

    def cancel(self, _: int) -> None:
        if self._pulls:
            self._pulls.pop(self.chance.randrange(len(self._pulls)))[2].cancel()

    def settle(self, _: int) -> None:
        for member, number, task in [one for one in self._pulls if one[2].done()]:
            is_taken = self.chance.random() < 0.7
            if is_taken:
                self.taken.append(msgspec.json.decode(task.result()))
            member.settle(number, is_taken=is_taken)
        self._pulls = [one for one in self._pulls if not one[2].done()]

    def leave(self, _: int) -> None:
        gone = self.members.pop(0)
        gone.leave()
        for one in self._pulls:
            if one[0] is gone:
                one[2].cancel()
        self._pulls = [one for one in self._pulls if one[0] is not gone]
        self.members.append(self.channels.join())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_value_is_taken_once_or_still_there(seed: int) -> None:
    async def scenario() -> None:
        crowd = Crowd(seed)
        acts = [crowd.push] * 4 + [crowd.pull] * 4 + [crowd.cancel] * 2 + [crowd.settle] * 2 + [crowd.leave]
        for step in range(400):
            crowd.chance.choice(acts)(step)
            if crowd.chance.random() < 0.5:
                await turns()
            crowd.channels.check_integrity()
        for member in crowd.members:
            member.leave()
        await turns()
        last, rest = crowd.channels.join(), list[int]()
        while crowd.channels._queues:
            rest.append(await pulled(last, len(rest)))
        assert rest == sorted(rest)
        assert sorted(crowd.taken + rest) == list(range(crowd.num_pushed))
        last.leave()
        assert crowd.channels.is_empty

    run(scenario())
