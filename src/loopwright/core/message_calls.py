"""The calls between runs of one tenant, and the one that hears the run's client. Never executes one.

Part of the union in `host_calls`. Values are JSON; a topic or queue needs no making and has a name that the program's
permissions list. Answers that a program may stop waiting for can be asked for again, so that nothing gets lost.
"""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from loopwright.core.call_base import HostCall

ChannelName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**31)]


class Broadcast(HostCall, frozen=True, kw_only=True, tag="broadcast"):
    """A value for all that are subscribed to a topic now: {num_subscribers}. Never waits for them."""

    topic: ChannelName
    value: Any


class Subscribe(HostCall, frozen=True, kw_only=True, tag="subscribe"):
    """From now on, what is broadcast to a topic is kept for this run, up to its bounds; then the oldest goes. Done."""

    topic: ChannelName
    subscription: Number  # a number of the program's choice
    max_messages: Annotated[int, Meta(ge=1, le=4096)] = 256


class NextMessages(HostCall, frozen=True, kw_only=True, tag="next_messages"):
    """Waits for messages of a subscription: {first, messages}, where `first` numbers the first of them, from 0 on.
    More than `num_seen` is how many were lost."""

    subscription: Number
    num_seen: Number = 0  # how many the program needs no more: they are dropped


class Unsubscribe(HostCall, frozen=True, kw_only=True, tag="unsubscribe"):
    """Ends a subscription, and a wait for its messages. Done."""

    subscription: Number


class Push(HostCall, frozen=True, kw_only=True, tag="push"):
    """A value to the end of a queue, for one who pulls. Done."""

    queue: ChannelName
    value: Any


class Pull(HostCall, frozen=True, kw_only=True, tag="pull"):
    """Waits for the first value of a queue: {value}. It is lent until `settle`, and goes back when the run ends."""

    queue: ChannelName
    ticket: Number  # a number of the program's choice


class Settle(HostCall, frozen=True, kw_only=True, tag="settle"):
    """Whether the program has what it pulled; otherwise it is first in its queue again. Done."""

    ticket: Number
    is_taken: bool


class Receive(HostCall, frozen=True, kw_only=True, tag="receive"):
    """Waits for a message of the run's client: {message}, or {message: null} once the client has no more."""

    num_received: Number = 0  # how many the program has: they are dropped


ChannelCall: TypeAlias = Broadcast | Subscribe | NextMessages | Unsubscribe | Push | Pull | Settle
"""Answered by the exchange, where all runs of a server meet."""

MessageCall: TypeAlias = ChannelCall | Receive
