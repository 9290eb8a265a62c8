"""Owns one segment: its sampled tokens, when it ends and what is kept of it. Never chooses a token or a page.

Made when a Generate is issued; from then on used as every feed is, by the scheduler and the controller.
"""

from collections.abc import Sequence

from loopwright.control.feeds import Feed
from loopwright.core.batch import RowResult
from loopwright.core.calls import Generate
from loopwright.core.results import Progress, Segment, StopReason, TopLogprobs
from loopwright.text.stop import StopMatch, StopMatcher


class SegmentFeed(Feed):
    """A feed that, once its prompt has run, feeds each sampled token back, until something ends it.

    Token j is sampled to stand at position last + 1 + j, where last is the prompt's last position, and runs there in
    the next step; so the last sampled token never runs. At least one token is sampled, even when the prompt fills the
    context; a further one only if its position is below `max_context`."""

    __slots__ = (
        "_call", "_ends", "_match", "_matcher", "_max_context", "_num_prompt", "_reason", "_stop_tokens",
        "_token_bytes", "is_interrupted", "logprobs", "tokens", "top_logprobs",
    )  # fmt: skip

    def __init__(self, call: Generate, token_bytes: Sequence[bytes], max_context: int) -> None:
        super().__init__(kv_len=call.kv_len, tokens=call.tokens, positions=call.positions, sampling=call.sampling)
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] = []  # only if asked for
        if call.sampling.has_penalties:
            self._generated = self.tokens  # rows refer to this very list
        self.is_interrupted = False  # set by the controller; the segment ends at its next token boundary
        self._call = call
        self._num_prompt = len(call.tokens)
        self._stop_tokens = frozenset(call.stop_tokens)
        self._token_bytes, self._max_context = token_bytes, max_context
        self._matcher = StopMatcher(call.stop) if call.stop else None
        self._match: StopMatch | None = None
        self._ends: list[int] = []  # bytes up to the end of each token; only with a matcher
        self._reason: StopReason = "interrupted"

    def advance(self, result: RowResult) -> bool:
        """Takes what came of the row. True when the segment is over."""
        if not super().advance(result):
            return self.is_interrupted
        assert self.sampled, "the last row of a prompt asks for a token"
        token, position = self.sampled[-1].token_id, self._sample_position
        self.tokens.append(token)
        self.logprobs.append(self.sampled[-1].logprob)
        if self._call.sampling.top_logprobs:
            self.top_logprobs.append(self.sampled[-1].top_logprobs)
        if (reason := self._end_reason(token, position)) is not None:
            self._reason = reason
            return True
        self._tokens, self._positions = (token,), (position,)
        self._sample_position = position + 1
        self._num_run, self.num_inputs = 0, 1
        return self.is_interrupted

    def progress(self) -> Progress | None:
        """The token of the step that just ended, if the program asked to see it and there was one."""
        if not self._call.progress or not self.sampled:
            return None
        sampling = self._call.sampling
        return Progress(
            (self.tokens[-1],), (self.logprobs[-1],), tuple(self.top_logprobs[-1:]), logprob_kind=sampling.logprobs
        )

    def segment(self, num_pages: int) -> Segment:
        """What the segment completes with, ended by the last token or, if by none, interrupted."""
        num_kept, remainder = len(self.tokens), ""
        stop: str | int | None = None
        if self._reason == "stop_token":
            num_kept, stop = num_kept - 1, self.tokens[-1]
        elif self._match is not None:
            stop = self._match.stop
            num_kept, remainder = self._cut(self._match.start)
        return Segment(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            num_kept=num_kept,
            remainder=remainder,
            reason=self._reason,
            stop=stop,
            kv_len=min(self.kv_len, self.start_kv_len + self._num_prompt + num_kept),
            num_pages=num_pages,
            top_logprobs=tuple(self.top_logprobs),
            logprob_kind=self._call.sampling.logprobs,
        )

    def _end_reason(self, token: int, position: int) -> StopReason | None:
        if token in self._stop_tokens:
            return "stop_token"
        if self._matcher is not None:
            piece = self._token_bytes[token]
            self._ends.append(len(piece) + (self._ends[-1] if self._ends else 0))
            if (match := self._matcher.push(piece)) is not None:
                self._match = match
                return "stop"
        if len(self.tokens) == self._call.max_tokens or position + 1 >= self._max_context:
            return "length"
        return None

    def _cut(self, start: int) -> tuple[int, str]:
        """How many tokens end at or before byte `start`, and the text from there up to `start`."""
        num_kept = sum(end <= start for end in self._ends)
        kept_end = self._ends[num_kept - 1] if num_kept else 0
        dropped = self._token_bytes[self.tokens[num_kept]]
        return num_kept, dropped[: start - kept_end].decode("utf-8", errors="ignore")
