"""The simulated device in real time: when its steps are over, by a clock that the test moves."""

from collections.abc import Iterator
from threading import Event

import pytest

from loopwright.core.batch import Batch, DecodeRows, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.executor import EngineShape
from loopwright.core.step_costs import StepCosts
from loopwright.engine.paced import PacedExecutor
from loopwright.engine.simulated import answer

SHAPE = EngineShape(100, 1000, 16, 100, 100, steps_ahead="usual")


class Time:
    """Sleeping moves it; `late_s` is how much too long."""

    def __init__(self, late_s: float) -> None:
        self.now = 0.0
        self.late_s = late_s
        self.may_pass = Event()
        self.may_pass.set()

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.may_pass.wait()
        self.now += seconds + self.late_s


@pytest.fixture
def time() -> Time:
    return Time(late_s=0.25)


@pytest.fixture
def device(time: Time) -> Iterator[PacedExecutor]:
    device = PacedExecutor(SHAPE, StepCosts(((1, 1.0), (3, 2.0))), 7, time.now_s, time.sleep)
    yield device
    device.close()


def rows(num: int) -> Batch:
    return Batch(decodes=DecodeRows([[0]] * num, [1] * num, [1] * num, [Sampling()] * num, [()] * num, [1] * num))


def test_a_step_that_waits_for_nobody_begins_when_it_comes(device: PacedExecutor, time: Time) -> None:
    assert device.submit(rows(1)).result().decodes.token_ids == [7]
    assert time.now == 1.25
    device.submit(rows(3)).result()
    assert time.now == 1.25 + 2.25
    assert device.busy_s == 3.0


def test_a_step_that_was_there_begins_when_the_one_before_is_over_and_not_when_that_is_noticed(
    device: PacedExecutor, time: Time
) -> None:
    time.may_pass.clear()
    steps = [device.submit(rows(1)) for _ in range(3)]
    time.may_pass.set()
    for step in steps:
        step.result()
    assert time.now == 3.25, "each was noticed a quarter late, and only the last one is late by it"


def test_a_distribution_is_as_large_as_it_was_asked_for() -> None:
    row = ForwardRow([0], 0, (0,), (1,), distributions=[DistributionRequest(k=256)])
    [distribution] = answer(Batch(rows=[row]), 9).rows[0].distributions
    assert (len(distribution.ids), len(distribution.logprobs)) == (1024, 1024)
    assert distribution.ids[:4] == (9).to_bytes(4, "little")
