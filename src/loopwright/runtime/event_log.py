"""Owns the events of one run: in order, exactly one final one, always last. Never decides what to say.

Written by the run's host and launcher; read by any number of followers.
"""

from collections.abc import AsyncIterator
from typing import Any

from loopwright.core.clock import Clock
from loopwright.core.errors import Code, ErrorInfo, LimitExceeded
from loopwright.core.event_feed import EventFeed
from loopwright.core.events import Emit, Event, Finished, Log, RanTokens, Receive, Started, Text, Tokens, ToolCall
from loopwright.core.ids import RunId
from loopwright.core.raise_hint import raise_hint
from loopwright.runtime.shown_tokens import ShownText

MIN_EVENT_BYTES = 16  # what an event counts for at the least: an empty line takes memory too
TOKEN_BYTES, LOGPROB_BYTES = 8, 64  # what a token and a log-probability count for
BURST_S = 10  # how many seconds' worth of lines may come at once


class EventLog:
    """Events of a run. What comes after the final one is dropped: the run is over for everybody.

    Raises LimitExceeded from the write that passes `max_bytes`, and keeps that event out."""

    def __init__(self, run_id: RunId, clock: Clock, max_bytes: int, max_log_lines_per_s: int = 1000) -> None:
        self.run_id = run_id
        self._clock = clock
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lines = LineRate(clock, max_log_lines_per_s)
        self._feed = EventFeed()

    def start(self, *, program: str, sandbox: str, model: str, seed: int) -> None:
        self._feed.add(Started(**self._stamp(), program=program, sandbox=sandbox, model=model, seed=seed))

    def text(self, text: str) -> None:
        self._count(_num_bytes(text))
        self._feed.add(Text(**self._stamp(), text=text))

    def tokens(self, shown: ShownText) -> None:
        num_logprobs = sum(1 + len(one.top) for one in shown.logprobs)
        self._count(_num_bytes(shown.text) + TOKEN_BYTES * len(shown.tokens) + LOGPROB_BYTES * num_logprobs)
        event = Tokens(
            **self._stamp(),
            text=shown.text,
            index=shown.shown.index,
            channel=shown.shown.channel,
            tokens=shown.tokens,
            logprobs=shown.logprobs,
        )
        self._feed.add(event)

    def log(self, stream: str, line: str) -> None:
        self._lines.take_one()
        self._count(_num_bytes(line))
        self._feed.add(Log(**self._stamp(), line=line, stream=stream))

    def emit(self, value: Any, num_bytes: int) -> None:  # noqa: ANN401 (JSON)
        self._count(num_bytes)
        self._feed.add(Emit(**self._stamp(), value=value))

    def receive(self) -> None:
        self._count(0)
        self._feed.add(Receive(**self._stamp()))

    def tool(self, name: str, arguments: str, duration_s: float, outcome: Code) -> None:
        self._count(_num_bytes(name) + _num_bytes(arguments))
        stamp = self._stamp()
        self._feed.add(ToolCall(**stamp, name=name, arguments=arguments, duration_s=duration_s, outcome=outcome))

    def check_result(self, num_bytes: int) -> None:
        """Raises LimitExceeded when a result of that size would pass the limit."""
        self._count(num_bytes)

    def finish(
        self,
        code: Code,
        result: Any = None,  # noqa: ANN401 (JSON)
        error: ErrorInfo | None = None,
        ran: RanTokens = RanTokens(),  # noqa: B008 (frozen)
    ) -> None:
        """Writes the final event; the first call counts, later ones change nothing."""
        self._feed.add(Finished(**self._stamp(), code=code, result=result, error=error, ran=ran))

    @property
    def num_bytes(self) -> int:
        """What its events take, as the limit counts it."""
        return self._num_bytes

    @property
    def final(self) -> Finished | None:
        """The final event, once there is one."""
        return self._feed.final

    def __len__(self) -> int:
        return len(self._feed)

    def follow(self, after: int = -1) -> AsyncIterator[Event]:
        """As EventFeed.follow."""
        return self._feed.follow(after)

    def _stamp(self) -> dict[str, Any]:
        return {"run": self.run_id, "seq": len(self._feed), "time_s": self._clock.wall_s()}

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += max(num_bytes, MIN_EVENT_BYTES)
        if self._num_bytes > self._max_bytes:
            raise LimitExceeded(
                f"the run's output has {self._num_bytes} bytes; its limit is {self._max_bytes}",
                hint=raise_hint("max_output_bytes", self._max_bytes, "print less"),
                field="max_output_bytes",
            )


class LineRate:
    """How many lines a run may still log: some at once, and then so many in every second."""

    def __init__(self, clock: Clock, max_per_s: int) -> None:
        self._clock = clock
        self._max_per_s = max_per_s
        self._num_left = float(max_per_s * BURST_S)
        self._num_taken = 0
        self._start_s = self._last_s = clock.now_s()

    def take_one(self) -> None:
        """Raises LimitExceeded when there is none."""
        now_s = self._clock.now_s()
        more = (now_s - self._last_s) * self._max_per_s
        self._num_left = min(self._num_left + more, self._max_per_s * BURST_S) - 1
        self._num_taken += 1
        self._last_s = now_s
        if self._num_left < 0:
            raise LimitExceeded(
                f"the run logged {self._num_taken} lines in {now_s - self._start_s:.1f} s; its limit is "
                f"{self._max_per_s} a second, after {self._max_per_s * BURST_S} at once",
                hint=raise_hint("max_log_lines_per_s", self._max_per_s, "log less"),
                field="max_log_lines_per_s",
            )


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
