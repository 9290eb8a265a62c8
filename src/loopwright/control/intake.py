"""Owns how a call of an open run gets its place: it is checked, bound and put into the order. Never runs or ends one.

Called by the controller, once for each call of a queue. What is wrong with a call becomes its failure, in its turn.
"""

from collections.abc import Sequence

from loopwright.control import ordering
from loopwright.control.compiling import CompilingCalls
from loopwright.control.direct_calls import rank
from loopwright.control.issue import QueuedCall, prepare, prepare_refused
from loopwright.control.ordering import CallQueue, OpenCall
from loopwright.control.resource_manager import ImmediateCall, ResourceManager
from loopwright.control.session import InlineSession
from loopwright.control.successors import Successors
from loopwright.core.call_table import require_traits
from loopwright.core.calls import ClearQueue, ForwardText, FreeEmbeds, FreePages, Generate, QueueCall
from loopwright.core.errors import ErrorInfo, LimitExceeded, LoopwrightError
from loopwright.core.going_on import Next
from loopwright.core.ids import CallId
from loopwright.core.model_info import ModelInfo
from loopwright.core.raise_hint import raise_hint
from loopwright.core.results import Completion, Done


class Intake:
    """Numbers the calls of all runs. `token_bytes` are those of every token id; of texts that may hold calls of tools,
    they are `bytes_with_marks`."""

    def __init__(
        self,
        resources: ResourceManager,
        compiling: CompilingCalls,
        model_info: ModelInfo,
        token_bytes: Sequence[bytes],
        bytes_with_marks: Sequence[bytes],
        successors: Successors,
    ) -> None:
        self._resources, self._compiling, self._successors = resources, compiling, successors
        self._model_info, self._token_bytes, self._bytes_with_marks = model_info, token_bytes, bytes_with_marks
        self._num_issued = 0

    def succeed(self, session: InlineSession, call_id: CallId, call: QueueCall) -> OpenCall | None:
        """The call as the successor of the one that the session keeps. If it cannot be that, that one is let go."""
        found = self._successors.succeed(session, call_id, call) if isinstance(call, ForwardText) else None
        if found is None:
            self._successors.let_go(session)
            return None
        self._place_anew(found)
        return found

    def go_on(self, session: InlineSession, call_id: CallId, one: Next) -> OpenCall | None:
        """Likewise, of a call that is known to ask for what the one before it did; None if it has to be seen whole."""
        found = self._successors.go_on(session, call_id, one)
        if found is not None:
            self._place_anew(found)
        return found

    def _place_anew(self, call: OpenCall) -> None:
        """Gives a call that was over a new place among all."""
        self._num_issued = number = self._num_issued + 1
        call.number, call.rank = number, rank(number, call.queue.priority)
        call.issued_s = self._resources.moment.now_s

    def take(
        self, session: InlineSession, queue: CallQueue, call_id: CallId, call: ImmediateCall | QueuedCall
    ) -> OpenCall | None:
        """The call if it is open now and waits for nobody."""
        if isinstance(call, ImmediateCall):
            return self._apply(session, queue, call_id, call)
        return self._enqueue(session, queue, call_id, call)

    def _apply(self, session: InlineSession, queue: CallQueue, call_id: CallId, call: ImmediateCall) -> OpenCall | None:
        """Done at once, though earlier calls of the queue may be open. Freeing depends on nothing that could fail: it
        works on a poisoned queue too."""
        if queue.failure is None or isinstance(call, FreePages | FreeEmbeds):
            try:
                require_traits(call, self._model_info)
                self._resources.apply(session.run_id, call)
            except LoopwrightError as error:
                return self._enqueue_refused(session, queue, call_id, call, error.info())
            session.inbox.put(Completion(call_id, result=Done()))
            return None
        return self._enqueue_refused(session, queue, call_id, call, queue.failure)

    def _enqueue(self, session: InlineSession, queue: CallQueue, call_id: CallId, call: QueuedCall) -> OpenCall | None:
        if self._is_over_limit(session, queue, call_id):
            return None
        if isinstance(call, ClearQueue):
            queue.failure = None  # for what is issued from now on; its turn clears what fails until then
            queue.num_clears += 1
            ordering.clear(queue, queue.num_clears)
        failure = queue.failure
        one = self._open_call(session, queue, call_id, call)
        if failure is None:
            holdings = self._resources.holdings(session.run_id)
            try:
                require_traits(call, self._model_info)
                self._compiling.check(call)
                has_calls = isinstance(call, Generate) and call.calls is not None
                token_bytes = self._bytes_with_marks if has_calls else self._token_bytes
                prepare(one, call, holdings, self._resources.shape, token_bytes)
            except LoopwrightError as error:
                failure = error.info()
        if failure is not None:
            return self._enqueue_refused(session, queue, call_id, call, failure)
        self._compiling.add(one)
        return self._place(session, one, ordering.taint(one))

    def _enqueue_refused(
        self, session: InlineSession, queue: CallQueue, call_id: CallId, call: QueueCall, failure: ErrorInfo
    ) -> OpenCall | None:
        """A refused call takes its turn too: its error comes in order, and what it did not write is not read."""
        if self._is_over_limit(session, queue, call_id):
            return None
        one = self._open_call(session, queue, call_id, call)
        prepare_refused(one, self._resources.holdings(session.run_id), self._resources.shape.block_size)
        return self._place(session, one, failure)

    def _is_over_limit(self, session: InlineSession, queue: CallQueue, call_id: CallId) -> bool:
        """Answers a call for which there is no room, at once and out of turn: it cannot wait anywhere."""
        error = _over_limit(session, queue)
        if error is None:
            return False
        queue.failure = queue.failure or ordering.consequence(queue, call_id, error.info())
        session.inbox.put(Completion(call_id, error=error.info()))
        return True

    def _open_call(self, session: InlineSession, queue: CallQueue, call_id: CallId, call: QueueCall) -> OpenCall:
        self._num_issued += 1
        place = rank(self._num_issued, queue.priority)
        one = OpenCall(session.run_id, session.inbox, call_id, call, queue, place, self._num_issued)
        one.issued_s = self._resources.moment.now_s
        return one

    def _place(self, session: InlineSession, call: OpenCall, failure: ErrorInfo | None) -> OpenCall | None:
        session.open_calls[call.call_id] = call
        call.queue.num_open += 1
        self._resources.hold(call)
        ordering.enqueue(call, failure, self._resources.holdings(session.run_id).order)
        return call if call.num_blockers == 0 else None


def _over_limit(session: InlineSession, queue: CallQueue) -> LimitExceeded | None:
    """Why the run may not open one more call in that queue, if it may not."""
    limits = session.limits
    places = (
        ("the run", len(session.open_calls), "max_open_calls", limits.max_open_calls),
        (f"queue {queue.name}", queue.num_open, "max_queue_depth", limits.max_queue_depth),
    )
    for where, num_open, name, limit in places:
        if num_open >= limit:
            return LimitExceeded(
                f"{where} has {num_open} open calls; the limit is {limit}",
                hint=raise_hint(name, limit, "wait for some"),
                field=name,
            )
    return None
