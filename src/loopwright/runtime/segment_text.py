"""The text side of one running segment: token ids in, text that is certain out. Never knows who reads it.

Owned by the host, one per segment call.
"""

from collections.abc import Sequence

from loopwright.core.calls import Generate
from loopwright.text.call_stops import stop_finder
from loopwright.text.stream import TextStream
from loopwright.text.tokenizer import Tokenizer


class SegmentText:
    """Follows a segment's tokens. Tokens may come in any portions; the joined deltas are the segment's text."""

    def __init__(self, generate: Generate, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes if generate.calls is None else tokenizer.bytes_with_marks
        self._stream = TextStream(self._token_bytes, stop_finder(generate.stop, generate.calls))
        self._stop_tokens = frozenset(generate.stop_tokens)
        self._num_seen = 0
        self._deltas: list[str] = []

    def push(self, tokens: Sequence[int]) -> str:
        """Takes the next tokens; the text that is certain by now. A stop token has no text: it ends the segment."""
        self._num_seen += len(tokens)
        return self._keep("".join([self._stream.push(token) for token in tokens if token not in self._stop_tokens]))

    def finish(self, tokens: Sequence[int]) -> str:
        """Takes all of the segment's tokens, of which some may have been pushed; the text that was still missing."""
        return self.push(tokens[self._num_seen :]) + self._keep(self._stream.finish())

    def num_bytes(self, token: int) -> int:
        """How much of the text a token is, if nothing takes it away."""
        return len(self._token_bytes[token]) if token < len(self._token_bytes) else 0

    @property
    def num_shown_bytes(self) -> int:
        """How many bytes of the tokens, less those of stop tokens, are in the text by now."""
        return self._stream.num_shown_bytes

    @property
    def text(self) -> str:
        return "".join(self._deltas)

    def _keep(self, delta: str) -> str:
        self._deltas.append(delta)
        return delta
