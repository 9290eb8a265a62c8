"""What a run and all below it have used of its CPU time and hold of memory. Never measures or ends anything itself.

One belongs to each run and to each piece of nested code, and leads up to that of the run above: what is charged to one
is charged to all on the way, so that no number of children gives a program more than its own limits.
"""

from typing import TYPE_CHECKING

from loopwright.core.errors import LimitExceeded, LoopwrightError
from loopwright.core.raise_hint import raise_hint
from loopwright.runtime.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Budget:
    """`fail` is told when something below has used up the last of it: whose budget it is, is over."""

    def __init__(self, limits: Limits, above: "Budget | None" = None) -> None:
        self.limits = limits
        self.fail: Callable[[LoopwrightError], None] = lambda error: None
        self.cpu_used_s = 0.0
        self.cpu_below_s = 0.0  # what of that was used by others, further down
        self.memory_held_mb = 0  # the memory limits of all that is alive, its own included
        self._above = above

    @property
    def cpu_left_s(self) -> float:
        """Seconds that may still be computed here: the least of what any budget on the way up has left."""
        return max(0.0, min(one.limits.cpu_seconds - one.cpu_used_s for one in self._way_up()))

    def charge_cpu(self, seconds: float) -> None:
        """Counts time spent computing. Raises LimitExceeded once there was too much of it, here or further up; whose
        budget above is used up fails."""
        exceeded: LimitExceeded | None = None
        for one in self._way_up():
            one.cpu_used_s += seconds
            one.cpu_below_s += 0.0 if one is self else seconds
            if one.cpu_used_s > one.limits.cpu_seconds:
                error = one._out_of_cpu()
                exceeded = exceeded or error
                if one is not self:
                    one.fail(error)
        if exceeded is not None:
            raise exceeded

    def take_memory(self, memory_mb: int) -> None:
        """Counts what begins here with that memory limit. Raises LimitExceeded when a budget on the way has no room."""
        for one in self._way_up():
            if one.memory_held_mb + memory_mb > one.limits.tree_memory_mb:
                raise LimitExceeded(
                    f"{memory_mb} MiB are asked for, and the limits of a run and of all below it that is alive hold "
                    f"{one.memory_held_mb} MiB; its limit is {one.limits.tree_memory_mb} MiB",
                    hint=raise_hint(
                        "tree_memory_mb",
                        one.limits.tree_memory_mb,
                        "give the children a smaller memory_mb, wait for some",
                    ),
                    field="tree_memory_mb",
                )
        for one in self._way_up():
            one.memory_held_mb += memory_mb

    def give_memory(self, memory_mb: int) -> None:
        """Takes back what `take_memory` counted."""
        for one in self._way_up():
            one.memory_held_mb -= memory_mb
            assert one.memory_held_mb >= 0

    def _out_of_cpu(self) -> LimitExceeded:
        limit_s = self.limits.cpu_seconds
        below = f", {self.cpu_below_s:.1f} s of it in what it started" if self.cpu_below_s else ""
        return LimitExceeded(
            f"the program computed for {self.cpu_used_s:.1f} s{below}; its limit is {limit_s:g} s",
            hint=raise_hint("cpu_seconds", limit_s, "compute less"),
            field="cpu_seconds",
        )

    def _way_up(self) -> "Iterator[Budget]":
        one: Budget | None = self
        while one is not None:
            yield one
            one = one._above
