"""The first step of programs that are started together waits for all of them, and no other step does."""

import asyncio

import pytest

from loopwright.control.arrivals import MAX_HOLD_S, MAX_STEPS, Arrivals
from loopwright.control.config import ControlConfig

from .rig import Rig, generate
from .test_overlap import SAMPLING, next_step, segment, serving


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def after_a_step(step_s: float) -> Arrivals:
    arrivals = Arrivals()
    arrivals.step_over(step_s)
    return arrivals


def test_a_lone_request_never_waits() -> None:
    assert after_a_step(0.01).hold_s(5.0, would_hold_up=False) == 0.0


def test_a_step_waits_as_long_as_it_may_and_then_no_more() -> None:
    arrivals = after_a_step(0.01)
    arrivals.expect(3)
    assert arrivals.hold_s(5.0, would_hold_up=False) == pytest.approx(MAX_STEPS * 0.01)
    assert arrivals.hold_s(5.015, would_hold_up=False) == pytest.approx(0.005)
    assert arrivals.hold_s(5.02, would_hold_up=False) == 0.0
    assert arrivals.hold_s(5.03, would_hold_up=False) == 0.0, "it has waited once for those that are expected"
    arrivals.expect(0)
    arrivals.expect(1)
    assert arrivals.hold_s(6.0, would_hold_up=False) > 0


def test_nobody_in_the_middle_of_an_answer_waits() -> None:
    arrivals = after_a_step(0.01)
    arrivals.expect(3)
    assert arrivals.hold_s(5.0, would_hold_up=True) == 0.0


def test_before_the_first_step_nobody_knows_what_waiting_saves() -> None:
    arrivals = Arrivals()
    arrivals.expect(3)
    assert arrivals.hold_s(5.0, would_hold_up=False) == 0.0


def test_slow_steps_hold_nobody_up_for_long() -> None:
    arrivals = after_a_step(60.0)
    arrivals.expect(3)
    assert arrivals.hold_s(5.0, would_hold_up=False) == pytest.approx(MAX_HOLD_S)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that waits for the time to pass waits longer than a test."""
    monkeypatch.setattr("loopwright.control.arrivals.MAX_HOLD_S", 1000.0)


async def turns(num: int = 20) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("_patient")
async def test_the_first_step_is_of_all_that_were_started_together() -> None:
    rig = Rig()
    rig.controller._arrivals.step_over(60.0)
    runs = [rig.open(name) for name in "abc"]
    async with serving(rig) as executor:
        rig.controller.expect(2)
        for run in runs:
            run.submit(generate((5, 6), sampling=SAMPLING, max_tokens=3))
            await turns()
            assert not executor.is_holding.is_set(), "the step did not wait"
        rig.controller.expect(0)
        assert await next_step(executor) == 3
        executor.release()


@pytest.mark.usefixtures("_patient")
async def test_a_step_that_others_wait_for_goes_on_while_programs_are_started() -> None:
    rig = Rig()
    one, other = rig.open("a"), rig.open("b")
    async with serving(rig) as executor:
        one.submit(segment())
        assert await next_step(executor) == 1
        rig.controller.expect(1)
        rig.clock.advance(1.0)  # how long the step takes
        executor.release()
        assert await next_step(executor) == 1
        other.submit(segment())
        executor.release()
        assert await next_step(executor) == 2
        rig.controller.expect(0)
        executor.release()


@pytest.mark.usefixtures("_patient")
async def test_other_policies_decide_by_themselves() -> None:
    rig = Rig(config=ControlConfig(policy="eager"))
    rig.controller._arrivals.step_over(60.0)
    run = rig.open("a")
    async with serving(rig) as executor:
        rig.controller.expect(1)
        run.submit(segment())
        assert await next_step(executor) == 1
        executor.release()


def test_on_a_device_a_step_waits_as_long_as_one_for_the_first_prompt_alone_would_take() -> None:
    arrivals = Arrivals()
    arrivals.step_over(0.02, has_prompts=True)
    arrivals.step_over(0.001)  # of rows that decode
    arrivals.expect(1)
    assert arrivals.hold_s(5.0, would_hold_up=False) == pytest.approx(0.02)
    assert arrivals.hold_s(5.02, would_hold_up=False) == 0.0
