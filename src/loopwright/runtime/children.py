"""The runs that a run has spawned: who may be one, how many, with what limits, and that none outlives its parent.

Never starts one: the launcher does. One of these belongs to each run, and answers its calls about children.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from loopwright.core.child_calls import CancelChild, ChildEvents, Spawn
from loopwright.core.errors import BadRequest, Cancelled, LimitExceeded, LoopwrightError, NotFound
from loopwright.core.ids import RunId
from loopwright.core.results import Done
from loopwright.runtime.budget import Budget
from loopwright.runtime.event_log import EventLog
from loopwright.runtime.limits import Limits
from loopwright.runtime.permissions import ANY_SOURCE, OWN_SOURCE, Permissions
from loopwright.runtime.services import Answers

MAX_DEPTH = 8
"""How many runs may stand above one another."""

MAX_ENDED = 64
"""Ended runs below one that nobody spawned that can still be asked about: else they would push out everybody's."""


class ChildRun(Protocol):
    """A run that was spawned, as its parent sees it."""

    run_id: RunId
    parent: "Children | None"
    events: EventLog
    task: asyncio.Task[None] | None

    def fail(self, error: LoopwrightError) -> None: ...


class Children:
    """What one run has spawned. `above` is the same of the run that spawned it."""

    def __init__(self, run_id: RunId, budget: Budget, permissions: Permissions, above: "Children | None") -> None:
        self.run_id = run_id
        self.permissions = permissions
        self.budget = budget
        self._limits = budget.limits
        self._above = above
        self._live: set[ChildRun] = set()
        self._num_below = 0  # runs alive below this one, at any depth
        self._num_spawned = 0
        self._ended: deque[RunId] = deque()  # at the top of the tree: all that ended below it, the oldest first

    def answers(self, launch: Callable[[Spawn], Awaitable[ChildRun]], find: Callable[[RunId], ChildRun]) -> Answers:
        """The part of the host's table. `launch` starts a run as a child of this one, `find` any run by its id."""
        return {
            Spawn: lambda call: self._spawn(call, launch),
            ChildEvents: lambda call: self._events(self._own(call.run, find), call.after),
            CancelChild: lambda call: self._cancel(self._own(call.run, find)),
        }

    def check(self, call: Spawn) -> None:
        """Raises PermissionDenied, LimitExceeded, BadRequest for a child that may not be."""
        if call.program and call.source is not None:
            raise BadRequest("a child has a program or a source, not both", field="program")
        if call.entry != "main" and (call.program or call.source is not None):
            raise BadRequest("entry: only the run's own source has another entry than main", field="entry")
        own_or_any = OWN_SOURCE if call.source is None else ANY_SOURCE
        self.permissions.check_child(call.program or own_or_any)
        lineage = list(self._lineage())
        if len(lineage) >= MAX_DEPTH:
            raise LimitExceeded(f"{len(lineage)} runs stand above the child; the limit is {MAX_DEPTH}")
        for one in lineage:
            if one._num_below >= one._limits.max_children:
                raise LimitExceeded(
                    f"the run {one.run_id} has {one._num_below} child programs alive, those of its children included; "
                    f"its limit is {one._limits.max_children}",
                    hint="wait for some of them first, or raise limits.max_children in the program's metadata",
                    field="max_children",
                )

    def limits_left(self, left_s: float) -> Limits:
        """What bounds a child's limits: the parent's own, and of its wall and CPU time what is left."""
        return msgspec.structs.replace(self._limits, seconds=max(left_s, 0.0), cpu_seconds=self.budget.cpu_left_s)

    def take_seed(self, seed: int) -> int:
        """The next child's, derived from its parent's: a run with a seed has the same children again."""
        self._num_spawned += 1
        return int.from_bytes(blake2b(f"{seed}/{self._num_spawned}".encode(), digest_size=8).digest()) >> 11

    def add(self, child: ChildRun) -> None:
        """Counts a child for as long as its task lives."""
        assert child.task is not None
        self._live.add(child)
        child.task.add_done_callback(lambda _: self._end(child))
        for one in self._lineage():
            one._num_below += 1

    def take_forgotten(self) -> Iterator[RunId]:
        """The ended runs of this tree that are too many to be kept."""
        *_, top = self._lineage()
        while len(top._ended) > MAX_ENDED:
            yield top._ended.popleft()

    def fail(self) -> None:
        """Cancels every child, for its parent is over."""
        for child in tuple(self._live):
            child.fail(Cancelled("the run that spawned it is over"))

    def _end(self, child: ChildRun) -> None:
        self._live.discard(child)
        for one in self._lineage():
            one._num_below -= 1
        one._ended.append(child.run_id)

    def _lineage(self) -> "Iterator[Children]":
        """This one, and those above it."""
        one: Children | None = self
        while one is not None:
            yield one
            one = one._above

    async def _spawn(
        self, call: Spawn, launch: Callable[[Spawn], Awaitable[ChildRun]]
    ) -> AsyncGenerator[dict[str, Any]]:
        child = await launch(call)
        assert child.task is not None
        try:
            yield {"run": child.run_id}
            await asyncio.wait([child.task])
            final = child.events.final
            assert final is not None, "a run is over without its final event"
            yield {"code": final.code, "result": final.result, "error": final.error}
        finally:
            child.fail(Cancelled("the run that spawned it waits for it no more"))
            await asyncio.wait([child.task])

    async def _events(self, child: ChildRun, after: int) -> AsyncGenerator[dict[str, Any]]:
        async for event in child.events.follow(after):
            yield {"event": event}

    def _cancel(self, child: ChildRun) -> Done:
        child.fail(Cancelled("cancelled by the run that spawned it"))
        return Done()

    def _own(self, run_id: RunId, find: Callable[[RunId], ChildRun]) -> ChildRun:
        child = find(run_id)
        if child.parent is not self:
            raise NotFound(f"run: {run_id} is no child of this run", field="run")
        return child
