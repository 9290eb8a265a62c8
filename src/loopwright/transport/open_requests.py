"""Owns the requests of a client that wait for their answer. Never sends one. Used by the clients of this package."""

import asyncio
from itertools import count
from typing import Generic, TypeVar

from loopwright.core.errors import LoopwrightError

AnswerT = TypeVar("AnswerT")


class OpenRequests(Generic[AnswerT]):
    """Futures by request number. A future that its caller gave up is forgotten when the answer comes."""

    def __init__(self) -> None:
        self._numbers = count()
        self._futures: dict[int, asyncio.Future[AnswerT]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def open(self) -> tuple[int, asyncio.Future[AnswerT]]:
        """A fresh number and the future of its answer."""
        number = next(self._numbers)
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._futures[number] = future
        return number, future

    def answer(self, number: int, answer: AnswerT) -> bool:
        """Whether somebody still waited for it."""
        future = self._futures.pop(number, None)
        if future is None or future.done():
            return False
        future.set_result(answer)
        return True

    def fail(self, number: int, error: LoopwrightError) -> None:
        future = self._futures.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail_all(self, message: str, kind: type[LoopwrightError]) -> None:
        """Each gets an exception of its own: a shared one would collect the tracebacks of all who wait."""
        for number in list(self._futures):
            self.fail(number, kind(message))
