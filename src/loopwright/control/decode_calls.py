"""Passes on what the decode group sampled: ends the segments that are over, and tells programs of the others' tokens.

Never looks into a row: the group does. Called by the controller when a step has ended, and again when the engine has
the next one, which need not wait until programs have heard.
"""

from collections.abc import Callable

from loopwright.control.decoding import NO_DECODE_STEP, DecodeGroup, DecodeStep
from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.control.watching import WatchedFeed
from loopwright.core.batch import NO_DECODE_RESULT, DecodeResult
from loopwright.core.errors import ErrorInfo
from loopwright.core.results import Completion, Segment


class DecodeCalls:
    """The calls with rows in the group. `finish` and `fail` end one, and ask `tell_last` before its completion;
    `trim` takes pages from one that is over, which it got for what was ahead. `tell_due` has sessions told of what
    they have. A watched one that is over, or that its program holds, rests."""

    def __init__(
        self,
        finish: Callable[[OpenCall, Segment], None],
        fail: Callable[[OpenCall, ErrorInfo], None],
        trim: Callable[[OpenCall], None],
        tell_due: Callable[[], None],
        rest: Callable[[OpenCall, ErrorInfo | None], None],
    ) -> None:
        """`rest` is told with what a watched one failed, if it did."""
        self._finish, self._fail, self._trim, self._rest = finish, fail, trim, rest
        self._tell_due = tell_due
        self._step, self._result = NO_DECODE_STEP, NO_DECODE_RESULT  # the last, until it is told
        self._told: set[OpenCall] = set()  # its calls that want to hear no more of it

    def take(self, group: DecodeGroup, step: DecodeStep, result: DecodeResult) -> None:
        """What came of the group's rows."""
        over = group.take(step, result)
        self._step, self._result, self._told = step, result, set(step.wasted)
        for call, error, has_token in over:
            if not has_token:
                self._told.add(call)
            if isinstance(call.work, WatchedFeed):
                group.withdraw(call)
                if error is None and not call.work.is_interrupted:
                    call.work.end_here()
                self._rest(call, error)
            elif error is not None:
                self._fail(call, error)
            elif isinstance(call.work, SegmentFeed):
                self._trim(call)
                self._finish(call, call.work.segment(len(call.pages)))
        for call in group.take_rested():
            self._rest(call, None)

    def tell(self) -> None:
        """Tells the tokens of the last step to those who want to see them: readers of many sessions at once, others by
        the inboxes."""
        step, result, told = self._step, self._result, self._told
        self._step, self._result = NO_DECODE_STEP, NO_DECODE_RESULT
        if step.readings:
            self._tell_due()  # what sessions have came before
        for reading in step.readings:
            if not reading.tell(result, told):
                for call in reading.calls:
                    if call not in told:
                        _put_last(call)
        for call in step.shown:
            if call not in told:
                _put_last(call)

    def forget(self, call: OpenCall) -> None:
        """What the last step sampled for the call is void."""
        self._told.add(call)

    def tell_last(self, call: OpenCall) -> None:
        """As `tell`, for a call that ends now."""
        if call in self._told or not isinstance(call.work, SegmentFeed) or not call.work.is_shown:
            return
        if self._step.has(call):
            self._told.add(call)
            _put_last(call)


def _put_last(call: OpenCall) -> None:
    assert isinstance(call.work, SegmentFeed)
    call.inbox.put(Completion(call.call_id, call.work.last_token()))
