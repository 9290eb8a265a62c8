"""Ends calls that go on from one another, of which a step has many alike: programs hear of them first, as columns, and
the books follow while they choose. Never decides whether a call may go on.

Called by the controller when a step is over, first to tell, then to take; what is out of the ordinary is left to
`open_calls`, as any other call's row.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from loopwright.control.feeds import Feed
from loopwright.control.moment import Moment
from loopwright.control.observing import Observer
from loopwright.control.ordering import OpenCall
from loopwright.control.returns import Returns
from loopwright.control.session import InlineSession
from loopwright.control.step import Step
from loopwright.control.successors import Successors, is_only
from loopwright.core.batch import RowResult
from loopwright.core.ids import RunId
from loopwright.core.results import Completion, Forwarded
from loopwright.core.told_tokens import TokenReader, ToldLists


class GoingCalls:
    """Over the first rows of a step, those that go on."""

    def __init__(
        self,
        sessions: Mapping[RunId, InlineSession],
        successors: Successors,
        returns: Returns,
        observer: Observer,
        moment: Moment,
    ) -> None:
        self._sessions, self._successors, self._returns = sessions, successors, returns
        self._observer, self._moment = observer, moment
        self._step: Step | None = None  # what was told of last
        self._told: set[OpenCall] = set()  # its calls whose programs know

    def tell(self, step: Step, results: Sequence[RowResult], ended_s: float) -> None:
        """Tells readers of many sessions what their calls complete with, as far as all is well."""
        self._step, self._told = step, set()
        by_reader: dict[TokenReader, list[tuple[OpenCall, int, RowResult]]] = {}
        for call, row in zip(islice(step.rows, step.num_going), results, strict=False):
            inbox = call.inbox
            if inbox.reader is None or inbox.has_some or not self._is_well(call, row):
                continue
            reader, name = inbox.reader
            by_reader.setdefault(reader, []).append((call, name, row))
        for reader, rows in by_reader.items():
            calls = [call for call, _, _ in rows]
            is_timed = self._observer.is_on
            told = ToldLists(
                [name for _, name, _ in rows],
                [call.call_id for call in calls],
                [_feed(call).kv_len + 1 for call in calls],
                [len(call.pages) for call in calls],
                [row.distributions[0] for _, _, row in rows],
                [call.issued_s for call in calls] if is_timed else (),
                [call.started_s for call in calls] if is_timed else (),
                ended_s,
            )
            if reader.take_lists(told):
                self._told.update(calls)

    def take(self, step: Step, results: Sequence[RowResult]) -> list[tuple[OpenCall, RowResult]]:
        """Ends the calls. Returns those, with what came of them, that are left."""
        if self._step is not step:
            self.tell(step, results, self._moment.now_s)
        told, self._step, self._told = self._told, None, set()
        now_s, left = self._moment.now_s, []
        for call, row in zip(islice(step.rows, step.num_going), results, strict=False):
            if not self._is_well(call, row):
                left.append((call, row))
                continue
            call.num_in_steps -= 1
            feed, session = _feed(call), self._sessions[call.run_id]
            kv_len = feed.has_gone_on()
            self._successors.keep_again(call, feed, session)
            session.idle_since_s = now_s
            self._returns.told(session, now_s)
            if call not in told:
                timing = self._observer.call_over(call, session, now_s)
                result = Forwarded(kv_len=kv_len, num_pages=len(call.pages), distributions=tuple(row.distributions))
                call.inbox.put(Completion(call.call_id, result, None, timing))
        self._observer.waited([call.started_s - call.issued_s for call in told])
        return left

    def _is_well(self, call: OpenCall, row: RowResult) -> bool:
        """Whether the call's row went well, and the call is what its run has, and goes on from."""
        if call.is_over or row.error is not None or len(row.distributions) != 1 or call.inbox.is_closed:
            return False
        session = self._sessions[call.run_id]
        return session.kept is not None and session.kept.call is call and is_only(call, session)


def _feed(call: OpenCall) -> Feed:
    assert isinstance(call.work, Feed)
    return call.work
