"""Lets one operation at a time into a context. Owned by one Context."""

import asyncio

from loopwright.sdk.errors import LoopwrightError


class Turnstile:
    """A `with` block is an operation; a second one is refused while it lasts, and every one once it is closed.

    Forks change nothing that another could see, so tasks that fork one context wait for each other: `forks`."""

    def __init__(self) -> None:
        self.forks = asyncio.Lock()
        self.is_closed = False
        self._is_busy = False

    def __enter__(self) -> None:
        if self.is_closed:
            raise LoopwrightError("this context is closed")
        if self._is_busy:
            raise LoopwrightError("this context is busy: await one operation before the next, or fork it")
        self._is_busy = True

    def __exit__(self, *exc_info: object) -> None:
        self._is_busy = False
