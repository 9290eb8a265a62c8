"""Owns the topics and queues of one tenant: who is subscribed, what waits, what is lent. Never looks into a value.

Used by the exchange, on one event loop. Values are encoded JSON; whoever holds some of it is a member, and gives back
everything when it leaves.
"""

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass, field

import msgspec

from loopwright.core.errors import BadRequest, Cancelled, LimitExceeded, NotFound

MAX_BUFFER_BYTES = 4 << 20  # of a subscription; MAX_VALUE_BYTES is less, so that one message always fits
MAX_VALUE_BYTES = 1 << 20
MAX_QUEUES_BYTES = 64 << 20  # of a tenant, what is lent included
MAX_SUBSCRIPTIONS = 256  # of a member
MAX_TICKETS = 1024  # of a member
ITEM_OVERHEAD_BYTES = 128  # what a value takes beside its text

_LEFT = "the run has left its channels"


class Subscription:
    """What was broadcast to a topic and not dropped, in order. The newest are kept when it is full."""

    def __init__(self, topic: str, max_messages: int) -> None:
        self.topic = topic
        self._max_messages = max_messages
        self._messages: deque[msgspec.Raw] = deque()
        self._num_bytes = 0
        self._first = 0  # the number of the first message that is here
        self._is_over = False
        self._news = asyncio.Event()

    def add(self, value: msgspec.Raw) -> None:
        self._messages.append(value)
        self._num_bytes += len(value)
        while len(self._messages) > self._max_messages or self._num_bytes > MAX_BUFFER_BYTES:
            self._drop_first()
        self._news.set()

    async def after(self, num_seen: int) -> tuple[int, list[msgspec.Raw]]:
        """Drops the first `num_seen` messages of all times and waits until there are others: the number of the first
        of them, and all. Raises Cancelled when the subscription ends."""
        while True:
            while self._messages and self._first < num_seen:
                self._drop_first()
            if self._messages:
                return self._first, list(self._messages)
            if self._is_over:
                raise Cancelled(f"the subscription to {self.topic!r} was ended")
            self._news.clear()
            await self._news.wait()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    def check_integrity(self) -> None:
        assert self._num_bytes == sum(map(len, self._messages)) <= MAX_BUFFER_BYTES
        assert len(self._messages) <= self._max_messages

    def _drop_first(self) -> None:
        self._num_bytes -= len(self._messages.popleft())
        self._first += 1


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A value in a queue; the lowest number is first, also when it comes back."""

    number: int
    value: msgspec.Raw = field(compare=False)

    @property
    def num_bytes(self) -> int:
        return len(self.value) + ITEM_OVERHEAD_BYTES


class WorkQueue:
    """Values in order, or members that wait for one; never both."""

    def __init__(self) -> None:
        self.items: list[Item] = []  # a heap
        self.waiting: deque[Ticket] = deque()
        self.num_lent = 0

    def add(self, item: Item) -> None:
        if self.waiting:
            self._lend(item, self.waiting.popleft())
        else:
            heapq.heappush(self.items, item)

    def ask(self, ticket: "Ticket") -> None:
        """Lends the ticket the first item: now, or when there is one."""
        if self.items:
            self._lend(heapq.heappop(self.items), ticket)
        else:
            self.waiting.append(ticket)

    def settle(self, ticket: "Ticket", *, is_taken: bool) -> Item | None:
        """Ends a ticket: the item that left the queue for good, if one did."""
        if ticket.item is None:
            self.waiting.remove(ticket)
            return None
        self.num_lent -= 1
        if is_taken:
            return ticket.item
        self.add(ticket.item)
        return None

    @property
    def is_idle(self) -> bool:
        return not (self.items or self.waiting or self.num_lent)

    def _lend(self, item: Item, ticket: "Ticket") -> None:
        self.num_lent += 1
        ticket.item = item
        ticket.is_lent.set()


class Ticket:
    """A member's place in a queue, and then the item it was lent."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.item: Item | None = None
        self.is_lent = asyncio.Event()


class Channels:
    """All topics and queues of one tenant. A topic is there while somebody is subscribed, a queue while anything is in
    it, lent from it, or awaited."""

    def __init__(self) -> None:
        self._topics: dict[str, set[Subscription]] = {}
        self._queues: dict[str, WorkQueue] = {}
        self._members: set[ChannelMember] = set()
        self._num_items = 0
        self._num_bytes = 0  # of all items, waiting and lent

    def join(self) -> "ChannelMember":
        member = ChannelMember(self)
        self._members.add(member)
        return member

    @property
    def is_empty(self) -> bool:
        return not (self._topics or self._queues or self._members)

    @property
    def num_members(self) -> int:
        return len(self._members)

    def broadcast(self, topic: str, value: msgspec.Raw) -> int:
        """How many were subscribed."""
        subscribed = self._topics.get(topic, set())
        for one in subscribed:
            one.add(value)
        return len(subscribed)

    def push(self, name: str, value: msgspec.Raw) -> None:
        """Raises LimitExceeded when the queues are full."""
        item = Item(self._num_items, value)
        if self._num_bytes + item.num_bytes > MAX_QUEUES_BYTES:
            sizes = {other: len(queue.items) for other, queue in self._queues.items()}
            longest = max(sizes, key=lambda other: sizes[other])
            raise LimitExceeded(
                f"push to {name!r}: the queues hold {self._num_bytes} bytes; their limit is {MAX_QUEUES_BYTES}",
                hint=f"pull what waits: {sizes[longest]} values in {longest!r} alone",
                field="queue",
            )
        self._num_items += 1
        self._num_bytes += item.num_bytes
        self._queues.setdefault(name, WorkQueue()).add(item)

    def check_integrity(self) -> None:
        """Everything here belongs to a member, is counted, and is not empty."""
        subscribed = [one for member in self._members for one in member.subscriptions.values()]
        tickets = [one for member in self._members for one in member.tickets.values()]
        assert sorted(map(id, subscribed)) == sorted(id(one) for all_of in self._topics.values() for one in all_of)
        assert all(self._topics.values())
        for one in subscribed:
            one.check_integrity()
        lent = [one for one in tickets if one.item is not None]
        waiting = [ticket for queue in self._queues.values() for ticket in queue.waiting]
        assert sorted(map(id, waiting)) == sorted(id(one) for one in tickets if one.item is None)
        for name, queue in self._queues.items():
            assert not queue.is_idle, name
            assert not (queue.items and queue.waiting), name
            assert queue.num_lent == sum(one.queue == name for one in lent), name
        items = [item for queue in self._queues.values() for item in queue.items]
        items += [one.item for one in lent if one.item is not None]
        assert self._num_bytes == sum(item.num_bytes for item in items)

    # For members

    def add_subscription(self, one: Subscription) -> None:
        self._topics.setdefault(one.topic, set()).add(one)

    def remove_subscription(self, one: Subscription) -> None:
        self._topics[one.topic].remove(one)
        if not self._topics[one.topic]:
            del self._topics[one.topic]
        one.end()

    def ask(self, ticket: Ticket) -> None:
        self._queues.setdefault(ticket.queue, WorkQueue()).ask(ticket)

    def settle(self, ticket: Ticket, *, is_taken: bool) -> None:
        queue = self._queues[ticket.queue]
        if (gone := queue.settle(ticket, is_taken=is_taken)) is not None:
            self._num_bytes -= gone.num_bytes
        if queue.is_idle:
            del self._queues[ticket.queue]

    def leave(self, member: "ChannelMember") -> None:
        self._members.discard(member)


class ChannelMember:
    """What one run holds of its tenant's channels, by numbers of its own."""

    def __init__(self, channels: Channels) -> None:
        self.subscriptions: dict[int, Subscription] = {}
        self.tickets: dict[int, Ticket] = {}
        self._channels = channels
        self._has_left = False

    def subscribe(self, number: int, topic: str, max_messages: int) -> None:
        self._check_here()
        if number in self.subscriptions:
            raise BadRequest(f"the subscription {number} is there already", field="subscription")
        _check_room(len(self.subscriptions), MAX_SUBSCRIPTIONS, "subscriptions")
        one = self.subscriptions[number] = Subscription(topic, max_messages)
        self._channels.add_subscription(one)

    async def next_messages(self, number: int, num_seen: int) -> tuple[int, list[msgspec.Raw]]:
        """As `Subscription.after`."""
        if (one := self.subscriptions.get(number)) is None:
            raise NotFound(f"there is no subscription {number}", field="subscription")
        return await one.after(num_seen)

    def unsubscribe(self, number: int) -> None:
        if (one := self.subscriptions.pop(number, None)) is not None:
            self._channels.remove_subscription(one)

    async def pull(self, number: int, queue: str) -> msgspec.Raw:
        """Waits for an item, which is lent from the moment it is there. A wait that is cancelled leaves the queue."""
        self._check_here()
        if number in self.tickets:
            raise BadRequest(f"the ticket {number} is in use", field="ticket")
        _check_room(len(self.tickets), MAX_TICKETS, "tickets")
        ticket = self.tickets[number] = Ticket(queue)
        self._channels.ask(ticket)
        try:
            await ticket.is_lent.wait()
        except asyncio.CancelledError:
            if self.tickets.get(number) is ticket:
                self.settle(number, is_taken=False)
            raise
        if ticket.item is None:
            raise Cancelled(_LEFT)
        return ticket.item.value

    def settle(self, number: int, *, is_taken: bool) -> None:
        """An unknown ticket was settled before, when its wait was cancelled."""
        if (ticket := self.tickets.pop(number, None)) is not None:
            self._channels.settle(ticket, is_taken=is_taken)

    def leave(self) -> None:
        """Gives everything back, what it was lent in its old order. A call that begins only now holds nothing."""
        self._has_left = True
        for number in tuple(self.subscriptions):
            self.unsubscribe(number)
        for number, ticket in tuple(self.tickets.items()):
            self.settle(number, is_taken=False)
            ticket.is_lent.set()
        self._channels.leave(self)

    def _check_here(self) -> None:
        if self._has_left:
            raise Cancelled(_LEFT)


def _check_room(number: int, limit: int, things: str) -> None:
    if number >= limit:
        raise LimitExceeded(f"the run holds {number} {things}; the limit is {limit}", hint=f"end some {things} first")
