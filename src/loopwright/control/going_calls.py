"""Ends calls that go on from one another, of which a step has many alike: programs hear of them first, as columns, and
the books follow while they choose. Never decides whether a call may go on.

Called by the controller when a step is over, first to tell, then to take; what is out of the ordinary is left to
`open_calls`, as any other call's row.
"""

from collections.abc import Mapping, Sequence
from itertools import compress, islice
from typing import NamedTuple, TypeVar

from loopwright.control.feeds import Feed
from loopwright.control.moment import Moment
from loopwright.control.observing import Observer
from loopwright.control.ordering import OpenCall
from loopwright.control.returns import Returns
from loopwright.control.session import InlineSession
from loopwright.control.step import Step
from loopwright.control.successors import Successors
from loopwright.core.batch import RowResult
from loopwright.core.ids import CallId, RunId
from loopwright.core.results import Completion, Distribution, Forwarded
from loopwright.core.told_tokens import TokenReader, ToldLists

T = TypeVar("T")


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
        self._prepared: tuple[Step, list[_Readers]] | None = None
        self._step: Step | None = None  # what was told of last
        self._told: set[OpenCall] = set()  # its calls whose programs know

    def prepare(self, step: Step) -> None:
        """Works out, while the step runs, all that will be told of it but what it finds. Good until `disturb`."""
        if step.num_going and (self._prepared is None or self._prepared[0] is not step):
            self._prepared = step, self._readers(step)

    def disturb(self) -> None:
        """A run has asked for something, or is over."""
        self._prepared = None

    def tell(self, step: Step, results: Sequence[RowResult], ended_s: float) -> None:
        """Tells readers of many sessions what their calls complete with, as far as all is well."""
        if not step.num_going:
            return
        self.prepare(step)
        assert self._prepared is not None
        (_, readers), self._prepared = self._prepared, None
        self._step, self._told = step, set()
        for one in readers:
            rows = [results[place] for place in one.places]
            if not all(map(_is_right, rows)):
                one = one.only([_is_right(row) for row in rows])
                rows = [row for row in rows if _is_right(row)]
            if rows and one.reader.take_lists(one.told([row.distributions[0] for row in rows], ended_s)):
                self._told.update(one.calls)

    def take(self, step: Step, results: Sequence[RowResult]) -> list[tuple[OpenCall, RowResult]]:
        """Ends the calls. Returns those, with what came of them, that are left."""
        if self._step is not step:
            self.tell(step, results, self._moment.now_s)
        told, self._step, self._told = self._told, None, set()
        now_s, left = self._moment.now_s, []
        for call, row in zip(islice(step.rows, step.num_going), results, strict=False):
            if not (_is_right(row) and self._is_well(call)):
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

    def _readers(self, step: Step) -> list["_Readers"]:
        """Who reads for many, with what is known of their calls. Of a session that has something to be told before, and
        of one that has done something else, nothing."""
        by_reader: dict[TokenReader, list[tuple[int, int, OpenCall]]] = {}
        for place, call in enumerate(islice(step.rows, step.num_going)):
            inbox = call.inbox
            if inbox.reader is not None and not inbox.has_some and self._is_well(call):
                reader, name = inbox.reader
                by_reader.setdefault(reader, []).append((place, name, call))
        return [_Readers.of(reader, rows, is_timed=self._observer.is_on) for reader, rows in by_reader.items()]

    def _is_well(self, call: OpenCall) -> bool:
        """Whether the call is what its run has, and goes on from."""
        if call.is_over or call.inbox.is_closed:
            return False
        session = self._sessions[call.run_id]
        return session.kept is not None and session.kept.call is call  # whatever else it asks lets go of that


class _Readers(NamedTuple):
    """Calls of a step that one reader has, as columns. `places` are those of their rows."""

    reader: TokenReader
    places: Sequence[int]
    calls: Sequence[OpenCall]
    names: Sequence[int]
    call_ids: Sequence[CallId]
    kv_lens: Sequence[int]
    nums_pages: Sequence[int]
    issued_s: Sequence[float]
    started_s: Sequence[float]

    @classmethod
    def of(cls, reader: TokenReader, rows: Sequence[tuple[int, int, OpenCall]], *, is_timed: bool) -> "_Readers":
        places, names, calls = zip(*rows, strict=True)
        return cls(
            reader, places, calls, list(names),
            [call.call_id for call in calls],
            [_feed(call).kv_len + 1 for call in calls],
            [len(call.pages) for call in calls],
            [call.issued_s for call in calls] if is_timed else (),
            [call.started_s for call in calls] if is_timed else (),
        )  # fmt: skip

    def only(self, are_right: Sequence[bool]) -> "_Readers":
        """Without some of the calls."""

        def right(column: Sequence[T]) -> list[T]:
            return list(compress(column, are_right))

        return _Readers(
            self.reader, right(self.places), right(self.calls), right(self.names), right(self.call_ids),
            right(self.kv_lens), right(self.nums_pages), right(self.issued_s), right(self.started_s),
        )  # fmt: skip

    def told(self, lists: Sequence[Distribution], ended_s: float) -> ToldLists:
        """What the reader hears."""
        return ToldLists(
            self.names, self.call_ids, self.kv_lens, self.nums_pages, lists, self.issued_s, self.started_s, ended_s
        )


def _is_right(row: RowResult) -> bool:
    return row.error is None and len(row.distributions) == 1


def _feed(call: OpenCall) -> Feed:
    assert isinstance(call.work, Feed)
    return call.work
