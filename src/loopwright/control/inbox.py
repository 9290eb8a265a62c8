"""Owns the completions that a run has not taken yet. Never looks into them, and never knows calls or batches.

Filled by the controller, emptied by the run's one reader.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from loopwright.core.bell import Bell, Doorbell
from loopwright.core.errors import Cancelled
from loopwright.core.results import Completion

if TYPE_CHECKING:
    from loopwright.core.told_tokens import TokenReader


class Inbox:
    """Completions in order. After `close` it takes no more, and a reader that waits gets Cancelled."""

    def __init__(self, bell: Bell) -> None:
        """`bell` is shared by all inboxes of a controller."""
        self.is_closed = False
        self.reader: tuple[TokenReader, int] | None = None  # who has tokens of many, and what it calls this one
        self._completions: list[Completion] = []
        self._changed = asyncio.Event()
        self._bell = bell
        self._doorbell: Doorbell | None = None  # of a reader that wants to be told

    @property
    def has_some(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._completions)

    def put(self, completion: Completion) -> None:
        if not self.is_closed:
            self._completions.append(completion)
            if self._doorbell is None:
                self._changed.set()
            else:
                self._doorbell.news()

    def when_news(self, tell: Callable[[], None]) -> None:
        """As `core.control.Session`."""
        self._doorbell = Doorbell(self._bell, tell)

    def take(self) -> list[Completion]:
        """All completions that are here now, in order; possibly none."""
        if self._doorbell is not None:
            self._doorbell.has_them()
        taken, self._completions = self._completions, []
        return taken

    async def receive(self) -> list[Completion]:
        """Waits for at least one completion and takes all. For one caller at a time. Raises Cancelled once closed."""
        while not self._completions:
            if self.is_closed:
                raise Cancelled("the run is closed; nothing more will complete")
            self._changed.clear()
            await self._changed.wait()
        return self.take()

    def close(self) -> None:
        self.is_closed = True
        self.take()
        self._changed.set()
