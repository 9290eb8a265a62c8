"""A run as one HTTP request sees it: started, read in batches, and cancelled when the request ends before it does.

Never formats anything. Used by the routes that start runs or follow them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from loopwright.core.errors import LoopwrightError, NotFound
from loopwright.core.events import Event, Finished, Text, Tokens
from loopwright.core.ids import RunId
from loopwright.core.runs import Runs, RunSpec, open_events
from loopwright.server.identity import current_tenant
from loopwright.server.origin import current_origin

_AFTER_ALL = (1 << 53) - 1  # no event but the final one, which always comes
MAX_BATCH_EVENTS = 256  # read ahead of what the client has taken


@asynccontextmanager
async def started_run(runs: Runs, spec: RunSpec, *, is_detached: bool = False) -> AsyncIterator["LiveRun"]:
    """Starts a run. Leaving the block before its final event cancels it, unless detached. It is
    of the request's tenant. Raises as Runs.start does."""
    run = LiveRun(await runs.start(msgspec.structs.replace(spec, tenant=current_tenant(), origin=current_origin())))
    try:
        async with _reading(runs, run):
            yield run
    finally:
        if not (run.is_finished or is_detached):
            with suppress(NotFound):
                await runs.cancel(run.run_id)


@asynccontextmanager
async def followed_run(runs: Runs, run_id: RunId, after: int = -1) -> AsyncIterator["LiveRun"]:
    """Reads a run that somebody else started; leaving the block does nothing to it."""
    run = LiveRun(run_id)
    async with _reading(runs, run, after):
        yield run


async def all_finished(runs: Runs) -> None:
    """Returns when every run that is under way has had its final event. They are not asked to end."""
    for run in await runs.runs():
        if run.state == "running":
            with suppress(NotFound):  # it has ended, and was forgotten
                async with open_events(runs, run.run, _AFTER_ALL) as events:
                    async for _ in events:
                        pass


@asynccontextmanager
async def _reading(runs: Runs, run: "LiveRun", after: int = -1) -> AsyncIterator[None]:
    async with open_events(runs, run.run_id, after) as events:
        reading = asyncio.create_task(run.read(events))
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


class LiveRun:
    """The events of a run, taken together when they have come together."""

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.is_finished = False  # the final event has been handed out
        self._queue: asyncio.Queue[Event | LoopwrightError] = asyncio.Queue(MAX_BATCH_EVENTS)

    async def read(self, events: AsyncIterator[Event]) -> None:
        """Fills the queue, as fast as it is emptied."""
        try:
            async for event in events:
                await self._queue.put(event)
        except LoopwrightError as error:
            await self._queue.put(error)

    async def batches(self) -> AsyncGenerator[list[Event]]:
        """Every event, in order, up to and including the final one. Raises the error that ended the reading."""
        while not self.is_finished:
            batch = [self._taken(await self._queue.get())]
            while not self._queue.empty():
                batch.append(self._taken(self._queue.get_nowait()))
            yield batch

    def _taken(self, item: Event | LoopwrightError) -> Event:
        if isinstance(item, LoopwrightError):
            raise item
        self.is_finished = isinstance(item, Finished)
        return item


async def events_to_end(run: LiveRun) -> list[Event]:
    """All events of the run, up to its final one."""
    return [event async for batch in run.batches() for event in batch]


async def read_to_end(run: LiveRun) -> tuple[str, Finished]:
    """All the text that the run emits, and its final event."""
    events = await events_to_end(run)
    finished = events[-1]
    assert isinstance(finished, Finished), "a run's events end with a final one"
    return "".join(event.text for event in events if isinstance(event, Text | Tokens)), finished
