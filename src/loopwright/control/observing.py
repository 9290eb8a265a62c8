"""What control tells of its steps and calls: how large, how long, for whom. Never decides anything. Called by the
controller, once a step and once a call; what a step costs for it does not grow with rows that just go on, and is little
more than to note its times: what they come to is worked out for many steps at once.
"""

from collections.abc import Iterable
from typing import TypeAlias

from loopwright.control.feeds import Feed
from loopwright.control.moment import Moment
from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.control.session import InlineSession
from loopwright.control.step import Step
from loopwright.core import metrics
from loopwright.core.instrument import SILENT, Instrument
from loopwright.core.results import CallTiming

MAX_STEPS_NOTED = 1000


_Shape: TypeAlias = tuple[int, int, int, int]
"""Of a step: rows of one token, longer rows, and their tokens; and how many rows went on from the step before."""


class Observer:
    """Over one instrument. With one that is silent it does nothing at all."""

    def __init__(self, instrument: Instrument, block_bytes: int) -> None:
        self._instrument = instrument
        self._block_bytes = block_bytes
        self.is_on = instrument is not SILENT
        self._gaps: dict[_Shape, list[float]] = {}  # seconds since the step before, of each step noted
        self._num_noted = 0
        self._formed_s: list[float] = []
        self._ran_s: list[float] = []
        histogram = instrument.histogram
        self._steps_s = ((self._formed_s, histogram(metrics.SCHEDULE_S)), (self._ran_s, histogram(metrics.STEP_S)))
        self.step_formed = self._formed_s.append if self.is_on else SILENT.observe
        self.step_ran = self._ran_s.append if self.is_on else SILENT.observe
        self._gap = histogram(metrics.TOKEN_S).observe
        self._queue, self._prefill = histogram(metrics.QUEUE_S).observe, histogram(metrics.PREFILL_S).observe
        self._decode = histogram(metrics.DECODE_S).observe
        self._queue_all = histogram(metrics.QUEUE_S).observe_all

    def step_failed(self) -> None:
        self._instrument.add(metrics.FAILED_STEPS)

    def step_over(self, step: Step, moment: Moment) -> None:
        """Its calls have what came of it."""
        now_s, before_s, moment.step_over_s = moment.now_s, moment.step_over_s, moment.now_s
        if not self.is_on:
            return
        num_usual = num_single = len(step.decoded.run_ids)
        num_long = num_prompt = 0
        if step.rows:
            num_short = step.num_short
            num_single, num_long = num_single + num_short, len(step.rows) - num_short
            num_prompt = sum(row.num_tokens for row in step.batch_rows[num_short:])
            num_usual += self._count_rows(step.rows, now_s, before_s)
        if step.joined_decoding:
            num_usual -= self._count_late(step.joined_decoding, now_s, before_s)
        self._gaps.setdefault((num_single, num_long, num_prompt, num_usual), []).append(now_s - before_s)
        self._num_noted += 1
        if self._num_noted >= MAX_STEPS_NOTED:
            self.tell_steps()

    def tell_steps(self) -> None:
        """Tells the instrument of the steps since this was done last: many are alike."""
        instrument = self._instrument
        for noted_s, histogram in self._steps_s:
            histogram.observe_all(noted_s)
            noted_s.clear()
        rows, tokens, gaps = (
            instrument.histogram(one) for one in (metrics.STEP_ROWS, metrics.STEP_TOKENS, metrics.TOKEN_S)
        )
        for (num_single, num_long, num_prompt, num_usual), gaps_s in self._gaps.items():
            rows.observe(num_single + num_long, len(gaps_s))
            tokens.observe(num_single + num_prompt, len(gaps_s))
            instrument.add(metrics.STEP_SHAPES, len(gaps_s), (_size(num_single), _size(num_prompt)))
            if num_usual:
                gaps.observe_all(gaps_s, num_usual)
        self._gaps.clear()
        self._num_noted = 0

    def call_over(self, call: OpenCall, session: InlineSession, now_s: float) -> CallTiming | None:
        """What is known of a call that was for the engine, now that it is over."""
        feed = call.work
        if not self.is_on or not isinstance(feed, Feed):
            return None
        is_segment = isinstance(feed, SegmentFeed)
        tokens = feed.tokens if isinstance(feed, SegmentFeed) else feed.sampled
        first_s = (now_s if call.first_s is None else call.first_s) if tokens and is_segment else None
        num_prompt = feed.num_prompt
        timing = CallTiming(
            issued_s=call.issued_s,
            started_s=call.started_s if call.is_started else None,
            first_s=first_s,
            ended_s=now_s,
            prompt_tokens=num_prompt if call.is_started else 0,
            cached_tokens=feed.num_cached,
            generated_tokens=len(tokens),
        )
        self._count_call(timing, (session.tenant, session.program))
        return timing

    def waited(self, seconds: list[float]) -> None:
        """As `call_over` counts them: calls of one token that are over waited for so long each."""
        if seconds and self.is_on:
            self._queue_all(seconds)

    def held(self, session: InlineSession, block_seconds: float) -> None:
        """A run held so many blocks for so long since this was said last."""
        if block_seconds and self.is_on:
            account = (session.tenant, session.program)
            self._instrument.add(metrics.KV_BYTE_S, block_seconds * self._block_bytes, account)

    def _count_call(self, timing: CallTiming, account: tuple[str, str]) -> None:
        instrument = self._instrument
        if timing.prompt_tokens:
            instrument.add(metrics.PROMPT_TOKENS, timing.prompt_tokens, account)
        if timing.cached_tokens:
            instrument.add(metrics.CACHED_TOKENS, timing.cached_tokens, account)
        if timing.generated_tokens:
            instrument.add(metrics.GENERATED_TOKENS, timing.generated_tokens, account)
        if timing.started_s is None:
            return
        self._queue(timing.started_s - timing.issued_s)
        if timing.first_s is not None:
            self._prefill(timing.first_s - timing.started_s)
            self._decode(timing.ended_s - timing.first_s)

    def _count_late(self, joined: Iterable[OpenCall], now_s: float, before_s: float) -> int:
        """Of those that have just come to the decode rows, how many had no token in the step before."""
        num_late = 0
        for call in joined:
            if call.token_s is not None and call.token_s != before_s:
                self._gap(now_s - call.token_s)
                num_late += 1
            call.token_s = None  # from now on it is that of the last step
        return num_late

    def _count_rows(self, calls: Iterable[OpenCall], now_s: float, before_s: float) -> int:
        """Of the segments that have rows of their own, how many went on from the step before."""
        num_usual = 0
        for call in calls:
            feed = call.work
            if not isinstance(feed, SegmentFeed) or len(feed.tokens) == call.num_seen:
                continue
            call.num_seen = len(feed.tokens)
            if call.first_s is None:
                call.first_s = now_s
            elif call.token_s is None or call.token_s == before_s:
                num_usual += 1
            else:
                self._gap(now_s - call.token_s)
            call.token_s = now_s
        return num_usual


def _size(number: int) -> str:
    """Up to a power of two."""
    return str(1 << (number - 1).bit_length()) if number else "0"
