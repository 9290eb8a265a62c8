"""What a client is shown of a segment beside its text: ids at once, log-probabilities with the text they belong to.

Never decides what the text is. Owned by the host, one per segment call that asks for it. A token's log-probability is
held back for as long as its text is: what a stop string takes away is shown nowhere.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from loopwright.core.calls import Generate
from loopwright.core.events import TokenLogprob
from loopwright.core.host_calls import Shown
from loopwright.core.results import Progress, Segment, TopLogprobs
from loopwright.runtime.segment_text import SegmentText
from loopwright.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ShownText:
    """The fields of one event."""

    shown: Shown
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.logprobs)


class ShownTokens:
    """Follows a segment beside its SegmentText, which is told first."""

    def __init__(self, shown: Shown, generate: Generate, text: SegmentText, tokenizer: Tokenizer) -> None:
        self._shown = shown
        self._text = text
        self._tokenizer = tokenizer
        self._stop_tokens = frozenset(generate.stop_tokens)
        self._num_seen = 0
        self._num_bytes = 0  # of all tokens seen
        self._held: list[tuple[int, TokenLogprob]] = []  # with the number of bytes up to their end
        self._num_told = 0

    def push(self, progress: Progress, delta: str) -> ShownText:
        """What can be shown now that `delta` is certain."""
        new = self._see(progress.tokens, progress.logprobs, progress.top_logprobs)
        num_certain = self._text.num_shown_bytes
        count = next((n for n, (end, _) in enumerate(self._held) if end > num_certain), len(self._held))
        return ShownText(self._shown, delta, new, self._tell(count))

    def finish(self, segment: Segment, delta: str) -> ShownText:
        """All that was still missing of those tokens that are kept."""
        seen = self._num_seen
        tops = segment.top_logprobs[seen:]
        new = self._see(segment.tokens[seen:], segment.logprobs[seen:], tops)
        return ShownText(self._shown, delta, new, self._tell(max(0, segment.num_kept - self._num_told)))

    def _see(self, tokens: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopLogprobs]) -> tuple[int, ...]:
        self._num_seen += len(tokens)
        if self._shown.logprobs:
            for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
                one = token_logprob(self._tokenizer, token, logprob, tops[place] if tops else ())
                is_text = token not in self._stop_tokens  # of one that is not, the end decides whether it is kept
                self._num_bytes += self._text.num_bytes(token) if is_text else 0
                self._held.append((self._num_bytes if is_text else sys.maxsize, one))
        return tuple(tokens) if self._shown.tokens else ()

    def _tell(self, count: int) -> tuple[TokenLogprob, ...]:
        told, self._held = self._held[:count], self._held[count:]
        self._num_told += len(told)
        return tuple(one for _, one in told)


def token_logprob(tokenizer: Tokenizer, token: int, logprob: float | None, top: TopLogprobs = ()) -> TokenLogprob:
    """A token as a client sees it."""
    text, added = tokenizer.shown(token)
    tops = tuple(token_logprob(tokenizer, one, its) for one, its in top)
    return TokenLogprob(token, text, tuple(added) or None, logprob, tops)
