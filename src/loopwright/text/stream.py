"""Turns token ids into text as they come, and keeps stop strings from the reader. Never chooses when to end a run.

Called by the runtime for text that is shown while it grows. What is held back: the bytes of a character that is not
complete, and the longest end of the text that is a proper prefix of a stop.
"""

import codecs
from collections.abc import Iterable, Sequence

from loopwright.text.call_stops import StopFinder
from loopwright.text.stop import StopMatch, StopMatcher

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """The text of one growing list of tokens. The deltas of `push` and `finish`, joined, are the whole text:

    every byte before the first stop (or all, without one) decoded as UTF-8, where each maximal invalid part is U+FFFD,
    and a character cut off by the end is dropped. How the bytes were split into tokens makes no difference."""

    def __init__(self, token_bytes: Sequence[bytes], stops: Sequence[str] | StopFinder = ()) -> None:
        self._token_bytes = token_bytes
        self._matcher = StopMatcher(stops) if isinstance(stops, Sequence) else stops
        self._decoder = _new_decoder(errors="replace")
        self._held = b""  # may be the start of a stop
        self._num_released = 0  # bytes given to the decoder
        self._match: StopMatch | None = None

    @property
    def match(self) -> StopMatch | None:
        """The stop that ended the text."""
        return self._match

    @property
    def num_shown_bytes(self) -> int:
        """How many bytes of the tokens are in the text by now."""
        return self._num_released - len(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """Takes the next token and returns what can be shown now. After a stop that is always nothing."""
        if self._match:
            return ""
        new = self._token_bytes[token_id]
        self._match = self._matcher.push(new)
        held = self._held + new
        if self._match:
            return self._release(held, self._match.start - self._num_released)
        return self._release(held, len(held) - self._matcher.num_held)

    def finish(self) -> str:
        """The text that was held in case it became a stop. No token may follow."""
        if self._match:
            return ""
        self._match = self._matcher.finish()
        return self._release(self._held, self._match.start - self._num_released if self._match else len(self._held))

    def _release(self, held: bytes, num_bytes: int) -> str:
        self._held = held[num_bytes:]
        self._num_released += num_bytes
        return self._decoder.decode(held[:num_bytes])


def detokenize(token_bytes: Sequence[bytes], ids: Iterable[int]) -> str:
    """The text of a list of tokens: what a TextStream without stops would have shown."""
    return _new_decoder(errors="replace").decode(b"".join(token_bytes[token_id] for token_id in ids))
