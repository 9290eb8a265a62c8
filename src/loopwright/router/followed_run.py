"""Keeps the events of a run that a worker runs, so that they outlive it. Never runs anything. Used by the router."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from loopwright.core.errors import InternalError, LoopwrightError
from loopwright.core.event_feed import EventFeed
from loopwright.core.events import Event, Finished, Log, Started, Text
from loopwright.core.ids import RunId
from loopwright.core.runs import RunInfo, Runs, RunSpec, open_events

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class FollowedRun:
    """A run, and what its worker has told of it. All readers of the run read here. `when_over` is called once the final
    event is there, before a reader sees it."""

    def __init__(self, run_id: RunId, spec: RunSpec, when_over: Callable[["FollowedRun"], None]) -> None:
        self.run_id = run_id
        self.feed = EventFeed()
        self.num_bytes = 0
        self._program = spec.program or Path(spec.filename).stem
        self._tenant = spec.tenant
        self._when_over = when_over

    async def follow(self, worker: Runs) -> None:
        """Takes the worker's events until the final one, which it makes if the worker cannot say any more."""
        failure: LoopwrightError = InternalError(f"the events of run {self.run_id} ended without a final one")
        try:
            async with open_events(worker, self.run_id) as events:
                async for event in events:
                    self._add(event)
        except LoopwrightError as error:
            failure = error
        except Exception as error:  # a fault here must not leave readers waiting
            log.exception("reading run %s failed", self.run_id)
            failure = InternalError(repr(error))
        if self.feed.final is None:
            self._end(failure)

    def info(self) -> RunInfo:
        """As the worker would describe it, once it is over."""
        first, final = self.feed.first, self.feed.final
        assert first is not None
        assert final is not None
        return RunInfo(
            run=self.run_id,
            program=first.program if isinstance(first, Started) else self._program,
            state="done",
            code=final.code,
            started_s=first.time_s,
            seconds_s=final.time_s - first.time_s,
            num_events=len(self.feed),
            tenant=self._tenant,
        )

    def _add(self, event: Event) -> None:
        self.num_bytes += _num_bytes(event)
        self.feed.add(event)
        if isinstance(event, Finished):
            self._when_over(self)

    def _end(self, error: LoopwrightError) -> None:
        last = self.feed.first
        time_s = 0.0 if last is None else last.time_s
        seq = len(self.feed)
        self._add(Finished(run=self.run_id, seq=seq, time_s=time_s, code=error.code, error=error.info()))


def _num_bytes(event: Event) -> int:
    match event:
        case Text():
            return len(event.text)
        case Log():
            return len(event.line)
        case _:
            return len(_encode(event))
