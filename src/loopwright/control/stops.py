"""Where a stop string of a segment stands in the text of its tokens. Never says for what else a segment may end.

Asked by the segment about each token, and, when it is over, for how many of its tokens stand before the stop.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

from loopwright.core.calls import Generate
from loopwright.text.call_stops import stop_finder

if TYPE_CHECKING:
    from loopwright.text.stop import StopMatch


class Stops:
    """Of one segment that has stop strings. Raises BadRequest, when it is made, for some that cannot be."""

    __slots__ = ("_call", "_ends", "_finder", "_token_bytes", "match")

    def __init__(self, call: Generate, token_bytes: Sequence[bytes]) -> None:
        self.match: StopMatch | None = None
        self._call, self._token_bytes = call, token_bytes
        self._finder = stop_finder(call.stop, call.calls)
        self._ends: list[int] = []  # bytes up to the end of each token

    def push(self, token: int) -> bool:
        """Reads the next token; whether it completes a stop."""
        piece = self._token_bytes[token]
        self._ends.append(len(piece) + (self._ends[-1] if self._ends else 0))
        self.match = self._finder.push(piece)
        return self.match is not None

    def finish(self) -> bool:
        """No more tokens come: whether a stop stands in what might have become a call."""
        if self.match is None:
            self.match = self._finder.finish()
            return self.match is not None
        return False

    def go_back(self, tokens: Iterable[int]) -> None:
        """Has read these tokens alone, which have no stop."""
        self._finder = stop_finder(self._call.stop, self._call.calls)
        self._ends.clear()
        self.match = None
        for token in tokens:
            self.push(token)

    def before_one(self, tokens: Iterable[int]) -> Iterable[int]:
        """Those of the tokens, which may come next, that stand before the first to complete a stop. Reads none."""
        finder = copy(self._finder)  # shares the automaton
        for token in tokens:
            if finder.push(self._token_bytes[token]):
                return
            yield token

    def cut(self, tokens: Sequence[int]) -> tuple[int, str]:
        """How many of the tokens end at or before the match, and the text from there up to it."""
        assert self.match is not None
        num_kept = sum(end <= self.match.start for end in self._ends)
        kept_end = self._ends[num_kept - 1] if num_kept else 0
        dropped = self._token_bytes[tokens[num_kept]]
        return num_kept, dropped[: self.match.start - kept_end].decode("utf-8", errors="ignore")
