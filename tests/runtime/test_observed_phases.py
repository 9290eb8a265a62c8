"""What is seen of a run that makes very many calls: its phases add up, whether its program waits or computes on."""

import pytest

from loopwright.core.calls import Synchronize
from loopwright.core.clock import Clock
from loopwright.core.ids import CallId, QueueName
from loopwright.core.instrument import SILENT
from loopwright.core.results import CallTiming, Completion, Done
from loopwright.runtime.observation import Account, Observation
from loopwright.runtime.timeline import MAX_PENDING

NUM_CALLS = 4 * MAX_PENDING


class ByHand(Clock):
    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s


@pytest.mark.parametrize("waits", [True, False])
def test_a_program_that_computes_beside_its_calls_loses_none_of_its_time(waits: bool) -> None:
    clock = ByHand()
    observed = Observation(clock, SILENT, Account("", "p", "wasm"), 0.0, sees_waits=True)
    observed.launches()
    observed.begins()
    for number in range(NUM_CALLS):
        clock.at_s += 1.0  # the program computes
        observed.opened(number, Synchronize(queue=QueueName(1)))
        if waits:
            observed.waits()
        clock.at_s += 1.0  # the call runs
        timing = CallTiming(clock.at_s - 1.0, clock.at_s - 1.0, clock.at_s, clock.at_s, 0, 0, 0)
        observed.told(number, Completion(CallId(number), Done(), timing=timing))
        observed.closed(number)
        if waits:
            observed.goes_on()
        assert len(observed._timeline._pending) <= MAX_PENDING + 6, "it is settled again and again"
    totals = observed.end("ok", 0.0).totals()
    assert totals["prefill"] == NUM_CALLS
    assert totals["program"] == NUM_CALLS
    assert set(totals) <= {"prefill", "program", "queue"}
    assert sum(totals.values()) == 2 * NUM_CALLS
