"""Lets a call of one token go on from the one before it, with all that that one has looked up and holds.

A program that chooses each token makes one such call after the other, over the same pages. What the last one found is
still so if the run has asked for nothing else since. So a call that is over is *kept*: it holds its pages and has its
place in their order, though nobody sees it. The next call becomes that very one, or else it is let go, before anything
else of its run changes. Never runs or orders a call. Called when one is over, when one is issued, and by whoever takes
pages of a run that has no calls.
"""

from collections.abc import Iterable

from loopwright.control import ordering
from loopwright.control.checks import check_forward_text
from loopwright.control.feeds import Feed
from loopwright.control.ordering import OpenCall, is_lent
from loopwright.control.resource_manager import ResourceManager
from loopwright.control.session import InlineSession, Kept
from loopwright.core.calls import ForwardText
from loopwright.core.errors import LoopwrightError
from loopwright.core.going_on import Next
from loopwright.core.ids import CallId, PageName


class Successors:
    """Over the calls that sessions keep. If `is_on` is false, none is."""

    def __init__(self, resources: ResourceManager, *, is_on: bool) -> None:
        self._resources, self._is_on = resources, is_on
        self._size = resources.shape.block_size

    def keep(self, call: OpenCall, session: InlineSession) -> bool:
        """Ends a forward that went well, if one more token of the same context could go on from it: what it wrote is
        noted, and it is the run's only call. False if it has to be discarded as any other."""
        feed, text = call.work, call.call
        if not self._is_on or not isinstance(text, ForwardText) or not isinstance(feed, Feed):
            return False
        if not is_only(call, session) or not feed.may_go_on:
            return False
        if session.kept is not None and session.kept.call is call:
            self.keep_again(call, feed, session)
            return True
        call.is_over = True
        self._resources.mark_written(call)
        session.kept = Kept(call, (*text.pages, *call.grown))
        self._close(call, session)
        return True

    def keep_again(self, call: OpenCall, feed: Feed, session: InlineSession) -> None:
        """As `keep`, for one that went on, went well and is its run's only call."""
        call.is_over = True
        self._resources.mark_token(call, feed)
        self._close(call, session)

    def succeed(self, session: InlineSession, call_id: CallId, text: ForwardText) -> OpenCall | None:
        """The kept call as the given one, which waits for nobody, once its place among all calls is set. None, and
        nothing has changed, if that one has to be looked at as any other."""
        kept = session.kept
        assert kept is not None
        call = kept.call
        feed = call.work
        assert isinstance(feed, Feed)
        is_next = (
            call.is_over
            and text.queue == call.queue.name
            and text.kv_len == feed.kv_len
            and len(text.tokens) == 1
            and text.pages == kept.names
            and text.mask is None
            and text.held is None
            and call.queue.failure is None
        )
        if not is_next or not self._may_write(call) or not self._is_right(kept, text):
            return None
        if not self._has_place(kept, call, feed, text.grow_from):
            return None
        call.call = text
        feed.ask(text)
        feed.go_on(text.tokens[0], text.positions[0])
        self._open(session, call, call_id)
        return call

    def go_on(self, session: InlineSession, call_id: CallId, one: Next) -> OpenCall | None:
        """As `succeed`, of a call of which is known that it asks for what the one before it did, which `is_plain`."""
        kept = session.kept
        if kept is None or kept.checked is None:
            return None
        call = kept.call
        feed, shape = call.work, self._resources.shape
        assert isinstance(feed, Feed)
        if (
            not call.is_over
            or one.has_grown != bool(call.grown)
            or call.queue.failure is not None
            or not 0 <= one.token < shape.vocab_size
            or not 0 <= one.position < shape.max_context
            or not self._may_write(call)
            or not self._has_place(kept, call, feed, one.grow_from)
        ):
            return None
        feed.go_on(one.token, one.position)
        self._open(session, call, call_id)
        return call

    def _has_place(self, kept: Kept, call: OpenCall, feed: Feed, grow_from: PageName | None) -> bool:
        """Whether the call's next token has a place, or has got one."""
        call.grown = []  # and if it fails it leaves all pages but one that it grows now
        if feed.kv_len == len(call.pages) * self._size:
            if grow_from is None or not self._resources.grow_forward(call, feed, grow_from):
                return False
            kept.names = (*kept.names, grow_from)
        return True

    def _open(self, session: InlineSession, call: OpenCall, call_id: CallId) -> None:
        queue = call.queue
        call.call_id, call.num_clears = call_id, queue.num_clears
        call.is_started = call.is_over = False
        call.first_s, call.token_s, call.num_seen = None, None, 0
        session.open_calls[call_id] = call
        queue.num_open += 1
        queue.tail = call

    def _close(self, call: OpenCall, session: InlineSession) -> None:
        del session.open_calls[call.call_id]
        call.queue.num_open -= 1
        call.queue.tail = None

    def let_go(self, session: InlineSession) -> None:
        """The run holds nothing any more beside its names and its open calls."""
        if session.kept is None:
            return
        call, session.kept = session.kept.call, None
        if call.is_over:
            ordering.leave(call)
            self._resources.release(call)

    def kept(self, sessions: Iterable[InlineSession]) -> list[OpenCall]:
        """Of all runs, those that hold something though they are over."""
        return [one.kept.call for one in sessions if one.kept is not None and one.kept.call.is_over]

    def _may_write(self, call: OpenCall) -> bool:
        """Whether the last page is nobody else's: that cannot be without a call of the run, but for the prefix cache,
        which others get full pages from."""
        last = call.pages[-1]
        is_own = last.num_names == 1 and not is_lent(last)
        return is_own and last.id is not None and self._resources.blocks.num_others(last.id) == 0

    def _is_right(self, kept: Kept, text: ForwardText) -> bool:
        """Whether the call's values are within their limits; what it asks for is mostly what the last one did."""
        shape = self._resources.shape
        if (
            len(text.positions) != 1
            or not 0 <= text.tokens[0] < shape.vocab_size
            or not 0 <= text.positions[0] < shape.max_context
        ):
            return False
        if text.sampling is not None or text.num_drafts or text.distributions != kept.checked:
            try:
                check_forward_text(text, shape, (len(kept.names) + 1) * self._size)
            except LoopwrightError:
                return False
            kept.checked = text.distributions
        return not text.num_drafts


def is_only(call: OpenCall, session: InlineSession) -> bool:
    """Whether the call is the one that its run issued last, and nothing else of it is open."""
    return session.last_call == call.call_id and len(session.open_calls) == 1 and not call.dependents
