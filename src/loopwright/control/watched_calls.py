"""Passes on to watched segments what their programs and the engine say, and ends those that are settled.

Never waits for a turn: what a program says of a segment it watches counts at once. Called by the controller, which is
told by `finish` and `fail` when a segment is over.
"""

from collections.abc import Callable

from loopwright.control.ordering import OpenCall
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.session import InlineSession
from loopwright.control.watching import WatchedFeed
from loopwright.core.batch import RowResult
from loopwright.core.call_table import require_traits
from loopwright.core.errors import BadRequest, ErrorInfo
from loopwright.core.ids import CallId
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Completion, Done, Segment
from loopwright.core.watch_calls import Acknowledge, WatchCall


class WatchedCalls:
    """The calls whose work is a WatchedFeed, as long as they are open."""

    def __init__(
        self,
        resources: ResourceManager,
        finish: Callable[[OpenCall, Segment], None],
        fail: Callable[[OpenCall, ErrorInfo], None],
        withdraw: Callable[[OpenCall], None],
        tell_last: Callable[[OpenCall], None],
    ) -> None:
        """`withdraw` takes a call from the decode group, if it is in it, and `tell_last` tells its program of the last
        token there, if it has not heard of that yet."""
        self._resources = resources
        self._finish, self._fail, self._withdraw, self._tell_last = finish, fail, withdraw, tell_last

    def answer(self, call: WatchCall, session: InlineSession, model: ModelInfo) -> Done:
        """Acknowledges or vetoes tokens; nothing, if the segment is over. Raises ModelLacksTrait, BadRequest."""
        require_traits(call, model)
        watched = session.open_calls.get(CallId(call.handle))
        if watched is None or watched.failure is not None:
            return Done()
        feed = watched.work
        if not isinstance(feed, WatchedFeed):
            raise BadRequest(f"handle: call {call.handle} is not a watched segment", field="handle")
        if isinstance(call, Acknowledge):
            feed.acknowledge(call)
        else:
            feed.check_veto(call)
            self._withdraw(watched)
            feed.veto(call, is_running=watched.is_running)
            if not watched.is_running:
                self._resources.shrink(watched)
        self._end_if_settled(watched, feed)
        return Done()

    def take_row(self, call: OpenCall, feed: WatchedFeed, row: RowResult) -> None:
        """What came of the call's row, which may be an error: its program may still go back to before it."""
        is_interrupted = feed.advance(row)
        if is_interrupted or feed.has_shrunk:
            self._withdraw(call)  # with the row behind this one
        if feed.has_run_many:
            self._resources.record(call)
        if not is_interrupted:
            if feed.has_shrunk:
                self._resources.shrink(call)
            self._resources.slide(call)
            if feed.has_shrunk:
                self._end_if_settled(call, feed)
        if (progress := feed.progress()) is not None:
            call.inbox.put(Completion(call.call_id, progress))
        if is_interrupted:
            self.end_interrupted(call, feed)

    def go_back(self, call: OpenCall) -> None:
        """What ran for the call was no row of the segment: if a veto waits for the end of that, it is due."""
        if isinstance(call.work, WatchedFeed) and not (call.is_over or call.is_running) and call.work.go_back():
            self._resources.shrink(call)

    def take_end(self, call: OpenCall, feed: WatchedFeed, error: ErrorInfo | None) -> None:
        """The last row of the call in the decode group has run: it is over, or its program holds it."""
        if error is not None:
            feed.fail(error)
        if feed.is_interrupted:
            self.end_interrupted(call, feed)
        elif feed.has_ended_itself:
            self._resources.shrink(call)
            self._end_if_settled(call, feed)

    def refuse(self, call: OpenCall, feed: WatchedFeed, info: ErrorInfo) -> None:
        """The segment cannot run on: it fails when its program has seen what there is, for it may go back."""
        feed.fail(info)
        self._end_if_settled(call, feed)

    def end_interrupted(self, call: OpenCall, feed: WatchedFeed) -> None:
        """Ends the segment with what its program has acknowledged."""
        self._tell_last(call)
        feed.cut_to_seen()
        self._resources.shrink(call)
        self._resources.slide(call)
        self._finish(call, feed.segment(len(call.pages)))

    def _end_if_settled(self, call: OpenCall, feed: WatchedFeed) -> None:
        if feed.is_settled and feed.error is not None:
            self._fail(call, feed.error)
        elif feed.is_settled:
            self._resources.slide(call)
            self._finish(call, feed.segment(len(call.pages)))
