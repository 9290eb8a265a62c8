"""Passes on what the decode group sampled: ends the segments that are over, and tells programs of the others' tokens.

Never looks into a row: the group does. Called by the controller when a step has ended, and again when the engine has
the next one, which need not wait until programs have heard.
"""

from collections.abc import Callable

from loopwright.control.decoding import DecodeGroup, DecodeStep
from loopwright.control.ordering import OpenCall
from loopwright.control.segments import SegmentFeed
from loopwright.control.watching import WatchedFeed
from loopwright.core.batch import DecodeResult
from loopwright.core.errors import ErrorInfo
from loopwright.core.results import Completion, Segment


class DecodeCalls:
    """The calls with rows in the group. `finish` and `fail` end one, and ask `tell_last` before its completion;
    `trim` takes pages from one that is over, which it got for what was ahead. A watched one that is over, or that its
    program holds, rests."""

    def __init__(
        self,
        finish: Callable[[OpenCall, Segment], None],
        fail: Callable[[OpenCall, ErrorInfo], None],
        trim: Callable[[OpenCall], None],
        rest: Callable[[OpenCall, ErrorInfo | None], None],
    ) -> None:
        """`rest` is told with what a watched one failed, if it did."""
        self._finish, self._fail, self._trim, self._rest = finish, fail, trim, rest
        self._untold: dict[OpenCall, SegmentFeed] = {}  # the last step sampled for them, and they want to know

    def take(self, group: DecodeGroup, step: DecodeStep, result: DecodeResult) -> None:
        """What came of the group's rows."""
        over = group.take(step, result)
        self._untold = step.shown
        for call, error, has_token in over:
            if not has_token:
                self._untold.pop(call, None)
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
        """Puts the tokens of the last step into the inboxes of those who want to see them."""
        untold, self._untold = self._untold, {}
        for call, feed in untold.items():
            call.inbox.put(Completion(call.call_id, feed.last_token()))

    def forget(self, call: OpenCall) -> None:
        """What the last step sampled for the call is void."""
        self._untold.pop(call, None)

    def tell_last(self, call: OpenCall) -> None:
        """As `tell`, for a call that ends now."""
        if (feed := self._untold.pop(call, None)) is not None:
            call.inbox.put(Completion(call.call_id, feed.last_token()))
