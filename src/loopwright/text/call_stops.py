"""Finds stop strings in what is no call of a tool: a call is not text to its reader, and cutting one breaks its JSON.

Stands in for a StopMatcher where a text may hold calls. The sdk's readers say what is a call; they read bytes here, as
characters of Latin-1, so that places are those of bytes and no split of the text makes a difference.
"""

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Protocol

from loopwright.core.grammars import CallsInText
from loopwright.sdk.call_object import CallBegun, Fault, Found
from loopwright.sdk.tool_formats import reader_of
from loopwright.text.stop import StopMatch, StopMatcher


class StopFinder(Protocol):
    """What StopMatcher and ProseStops have in common."""

    @property
    def num_held(self) -> int:
        """How many of the last bytes pushed may be the start of a stop. 0 after a match."""
        ...

    def push(self, token_bytes: bytes) -> StopMatch | None:
        """Reads the next bytes and returns the match, once there is one."""
        ...

    def finish(self) -> StopMatch | None:
        """The text is over: a match in what had been held back, too."""
        ...


def stop_finder(stops: Sequence[str], calls: CallsInText | None) -> StopFinder:
    """Raises BadRequest as StopMatcher does."""
    return StopMatcher(stops) if calls is None or not stops else ProseStops(stops, calls)


class ProseStops:
    """One stream's progress. A stop counts where it stands in one stretch of text, without a call in it; what is only
    space behind a call, or at the start, is text once some follows that is not."""

    def __init__(self, stops: Sequence[str], calls: CallsInText) -> None:
        self._fresh = StopMatcher(stops)
        self._reader = reader_of(calls.format, is_answer_held=calls.is_answer_held)
        self._matcher = copy(self._fresh)  # of the stretch that was read last
        self._base = 0  # where that began
        self._end = 0  # … and where it ends by now
        self._num_pushed = 0
        self._space = b""  # at its end, not read yet
        self._holds_space = True
        self._match: StopMatch | None = None

    def __copy__(self) -> "ProseStops":
        other = object.__new__(ProseStops)
        other.__dict__.update(self.__dict__)
        other._reader, other._matcher = deepcopy(self._reader), copy(self._matcher)
        return other

    @property
    def num_held(self) -> int:
        if self._match:
            return 0
        num_unread = self._reader.num_unread
        goes_on = self._end == self._num_pushed - num_unread
        return num_unread + (len(self._space) + self._matcher.num_held if goes_on else 0)

    def push(self, token_bytes: bytes) -> StopMatch | None:
        for byte in token_bytes:
            if self._match:
                break
            self._num_pushed += 1
            self._take(self._reader.push(chr(byte)))
        return self._match

    def finish(self) -> StopMatch | None:
        if self._match is None:
            self._take(self._reader.finish())
        if self._match is None and self._space:
            self._read(b"")
        return self._match

    def _take(self, found: Sequence[Found]) -> None:
        """What came of one byte: text of one stretch, or parts of a call."""
        for one in found:
            if isinstance(one, CallBegun):
                self._space, self._holds_space = b"", True
            elif isinstance(one, Fault) and not one.is_begun:
                self._holds_space = False
        text = "".join([one for one in found if isinstance(one, str)]).encode("latin-1")
        if not text:
            return
        end = self._num_pushed - self._reader.num_unread
        if end - len(text) != self._end:
            self._matcher, self._base, self._space = copy(self._fresh), end - len(text), b""
        self._end = end
        if self._holds_space and not text.strip():
            self._space += text
        else:
            self._read(text)

    def _read(self, text: bytes) -> None:
        text, self._space, self._holds_space = self._space + text, b"", False
        if (match := self._matcher.push(text)) is not None:
            self._match = StopMatch(match.stop, match.start + self._base)
