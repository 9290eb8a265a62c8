"""What completes while a program makes a call is told behind that call, in the order of time."""

from types import SimpleNamespace
from typing import Any

from loopwright.core.calls import Synchronize
from loopwright.core.clock import FakeClock
from loopwright.core.ids import CallId, QueueName, RunId
from loopwright.core.results import Completion, Done
from loopwright.runtime.tracing import RunTrace, Trace


class Guest:
    """Calls control, and takes what others of the run's calls came to meanwhile."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.session: Any = None
        self.completes: list[CallId] = []
        self._num_calls = 0

    def submit(self, op: str) -> int:
        self._num_calls += 1
        self.session.submit(CallId(self._num_calls), Synchronize(queue=QueueName(0)))
        self.clock.advance(1.0)
        self.session.take()
        return self._num_calls

    def take(self) -> list[Completion]:
        return [Completion(call_id=one, result=Done()) for one in self.completes]


def test_what_completes_during_a_call_is_told_behind_it() -> None:
    clock, traces = FakeClock(), list[Trace]()
    model: Any = SimpleNamespace(tokenizer=SimpleNamespace(token_bytes=None), info=SimpleNamespace(vocab_size=8))
    trace = RunTrace(RunId("one"), model, clock, traces.append)
    guest = Guest(clock)
    session: Any = SimpleNamespace(submit=lambda call_id, call: None, take=guest.take)
    guest.session = trace.session(session)
    traced = trace.guest(guest)  # type: ignore[arg-type]
    traced.submit('{"op": "synchronize"}')
    guest.completes = [CallId(1)]
    traced.submit('{"op": "synchronize"}')
    guest.completes = [CallId(3)]  # that is the very call
    traced.submit('{"op": "synchronize"}')
    told = [(type(one).__name__, one.handle, one.at_s) for one in traces]
    assert told == [
        ("Issued", 1, 0.0), ("Issued", 2, 1.0), ("Completed", 1, 2.0), ("Issued", 3, 2.0), ("Completed", 3, 3.0),
    ]  # fmt: skip
