"""A segment that the program looks at token by token while it runs ahead. Never generates.

Returned by Context.watch.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.errors import LoopwrightError
from loopwright.sdk.segment import Segment
from loopwright.sdk.turn import TopLogprobs, Turn, top_logprobs
from loopwright.sdk.turnstile import Turnstile


@dataclass(frozen=True, slots=True)
class WatchedToken:
    """One token. `index` counts from the segment's first; log-probabilities are as in a Turn."""

    index: int
    id: int
    logprob: float
    top_logprobs: TopLogprobs = ()


@checked
class Watched:
    """An asynchronous context manager, and in it an iterator over tokens.

    Asking for a token says that those before it stand. `veto` takes back the last one instead, and the model goes on
    from there. `turn` is there after the block: the segment as if it had run token by token. Leaving the block early
    keeps the tokens that were looked at. The context is busy for as long as the block lasts."""

    def __init__(
        self,
        turnstile: Turnstile,
        begin: Callable[[], Awaitable[Segment]],
        end: Callable[[Segment], Awaitable[Turn]],
    ) -> None:
        self._turnstile = turnstile
        self._begin, self._end = begin, end
        self._segment: Segment | None = None
        self._ahead: deque[WatchedToken] = deque()  # came, and was not looked at
        self._num_seen = self._num_acknowledged = self._num_vetoes = 0
        self.turn: Turn | None = None

    async def __aenter__(self) -> "Watched":
        self._turnstile.__enter__()
        try:
            self._segment = await self._begin()
        except BaseException:
            self._turnstile.__exit__()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._segment is not None
        try:
            if self.turn is None:
                self._acknowledge()
                self._segment.interrupt()
                self.turn = await self._end(self._segment)
        except LoopwrightError:
            if error is None:  # else what the block fails with is what counts
                raise
        finally:
            self._turnstile.__exit__()

    def __aiter__(self) -> "Watched":
        return self

    async def __anext__(self) -> WatchedToken:
        if self._segment is None:
            raise LoopwrightError("a watched segment begins in its block: async with ctx.watch(...) as watched")
        if self.turn is not None:
            raise StopAsyncIteration
        while not self._ahead:
            self._acknowledge()  # before waiting: or it might wait for us
            part = await self._segment.parts.next_part()
            if part is None:
                self.turn = await self._end(self._segment)
                raise StopAsyncIteration
            self._take(part)
        if len(self._ahead) <= self._num_seen - self._num_acknowledged:
            self._acknowledge()  # more was looked at than is left: a message for several tokens, and never a full stop
        self._num_seen += 1
        return self._ahead.popleft()

    def veto(self, *, ban: bool = True) -> None:
        """Takes back the last token that was looked at. With `ban` another one will come in its place; without, the
        same draw is made again."""
        if self._segment is None or self._num_seen == self._num_acknowledged:
            raise LoopwrightError("there is no token to veto: each is looked at first, and vetoed before the next")
        self._num_seen -= 1
        self._num_acknowledged = self._num_seen  # a veto says so
        self._num_vetoes += 1
        self._ahead.clear()
        self._segment.parts.tell("veto", index=self._num_seen, ban=ban)

    def _acknowledge(self) -> None:
        assert self._segment is not None
        if self._num_seen > self._num_acknowledged:
            self._segment.parts.tell("acknowledge", num_tokens=self._num_seen)
            self._num_acknowledged = self._num_seen

    def _take(self, part: dict[str, Any]) -> None:
        if part.get("num_vetoes", 0) != self._num_vetoes:
            return  # it ran before it heard of the last veto
        first, alternatives = part.get("first", 0), top_logprobs(part)
        for place, (token, logprob) in enumerate(zip(part["tokens"], part["logprobs"], strict=True)):
            self._ahead.append(WatchedToken(first + place, token, logprob, alternatives[place] if alternatives else ()))
