"""Owns the events of one run as a sequence that any number of readers follow. Never makes one.

Filled by the runtime's log of a run, and by the router, which copies what a worker tells.
"""

import asyncio
from collections.abc import AsyncIterator

from loopwright.core.events import Event, Finished


class EventFeed:
    """Events with seq 0, 1, …; what comes after the final one is dropped: the run is over for everybody."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._followers: set[asyncio.Event] = set()

    def add(self, event: Event) -> None:
        if self.final is None:
            assert event.seq == len(self._events), f"event {event.seq} came when {len(self._events)} was due"
            self._events.append(event)
            for news in self._followers:
                news.set()

    @property
    def first(self) -> Event | None:
        return self._events[0] if self._events else None

    @property
    def final(self) -> Finished | None:
        """The final event, once there is one."""
        last = self._events[-1] if self._events else None
        return last if isinstance(last, Finished) else None

    def __len__(self) -> int:
        return len(self._events)

    async def follow(self, after: int = -1) -> AsyncIterator[Event]:
        """Events with seq > after, as they come, up to and including the final one, which comes whatever `after` is: it
        is how a follower knows that the run is over."""
        news = asyncio.Event()
        self._followers.add(news)
        try:
            place = max(after + 1, 0)
            while (final := self.final) is None or place < len(self._events):
                news.clear()
                for event in self._events[place:]:
                    place += 1
                    yield event
                    if isinstance(event, Finished):
                        return
                if self.final is None:
                    await news.wait()
            yield final
        finally:
            self._followers.discard(news)
