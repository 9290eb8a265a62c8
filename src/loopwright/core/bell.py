"""Tells many readers of their news in one turn of the event loop: a step has tokens for hundreds of runs at once.

Never says what the news are. Owned by who has them, control or its client, for all its sessions: a callback of the loop
for each session would cost more than what most of them do with it.
"""

import asyncio
from collections.abc import Callable


class Bell:
    """Calls that are due in the loop's next turn, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def ring(self, tell: Callable[[], None]) -> None:
        """Has `tell` called. On the loop's thread."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self.tell_all)
        self._due.append(tell)

    def tell_all(self) -> None:
        """Makes all calls that are due, now."""
        due, self._due = self._due, []
        for tell in due:
            try:
                tell()
            except Exception as error:  # noqa: BLE001 (as the loop does with a callback of its own: the others are told)
                context = {"message": "a reader of completions failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


class Doorbell:
    """One reader's: rings when there are news, unless it has them by then."""

    def __init__(self, bell: Bell, tell: Callable[[], None]) -> None:
        self._bell, self._tell = bell, tell
        self._is_due = False
        self._tell_once = self._tell_if_due

    def news(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._bell.ring(self._tell_once)

    def has_them(self) -> None:
        self._is_due = False

    def _tell_if_due(self) -> None:
        if self._is_due:
            self._is_due = False
            self._tell()
