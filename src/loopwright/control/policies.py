"""When waiting calls become a batch: the policies that the Pie paper compares, behind one protocol. Never forms one.

A policy sees when each call became ready, and nothing else: no clock, no call. Asked by `grouping`; named in the
configuration.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

PolicyName: TypeAlias = Literal["adaptive", "eager", "k-only", "t-only"]


@dataclass(frozen=True, slots=True)
class Group:
    """The first `num_calls` of the waiting calls are a batch from `due_s` on, whatever comes later."""

    num_calls: int
    due_s: float


class Policy(Protocol):
    """Says which calls are to share a batch."""

    def next_group(self, ready_s: Sequence[float]) -> Group:
        """The next batch of calls that became ready at these times, at least one, ascending. If the times of later
        calls decide more, `due_s` is when this is settled without them: infinite, if it never is."""
        ...


class Adaptive:
    """Whatever waits is a batch as soon as the engine is idle. So the engine never idles while a call could run, and
    batches grow with the load by themselves."""

    def next_group(self, ready_s: Sequence[float]) -> Group:
        return Group(len(ready_s), math.inf)


class Eager:
    """Each call is a batch of its own."""

    def next_group(self, ready_s: Sequence[float]) -> Group:
        return Group(1, ready_s[0])


@dataclass(frozen=True, slots=True)
class KOnly:
    """Every `num_calls` calls are a batch. The last few would wait for ever: after `max_wait_s` they are one too."""

    num_calls: int
    max_wait_s: float

    def next_group(self, ready_s: Sequence[float]) -> Group:
        latest_s = ready_s[0] + self.max_wait_s
        if len(ready_s) >= self.num_calls and ready_s[self.num_calls - 1] <= latest_s:
            return Group(self.num_calls, ready_s[self.num_calls - 1])
        return Group(sum(one_s <= latest_s for one_s in ready_s[: self.num_calls]), latest_s)


@dataclass(frozen=True, slots=True)
class TOnly:
    """What becomes ready within `wait_s` of the first is a batch, even while the engine idles."""

    wait_s: float

    def next_group(self, ready_s: Sequence[float]) -> Group:
        latest_s = ready_s[0] + self.wait_s
        return Group(sum(one_s <= latest_s for one_s in ready_s), latest_s)


def make_policy(name: PolicyName, *, num_calls: int, wait_s: float, max_wait_s: float) -> Policy:
    """The policy of that name: `num_calls` and `max_wait_s` are k-only's, `wait_s` is t-only's."""
    policies: dict[PolicyName, Policy] = {
        "adaptive": Adaptive(),
        "eager": Eager(),
        "k-only": KOnly(num_calls, max_wait_s),
        "t-only": TOnly(wait_s),
    }
    return policies[name]
