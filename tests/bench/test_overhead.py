"""The overhead suite: its cases, and what it counts as a step and as a call."""

import asyncio

import pytest

from loopwright.bench.overhead import KINDS, NUM_FEW, Cost, call_s, measure_overhead, step_s
from loopwright.bench.sessions import Caller, by_segment
from loopwright.compose.simulated import open_simulation
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.step_costs import StepCosts
from loopwright.core.virtual_time import run_in_virtual_time
from system_rig import everything_came_back

FREE = StepCosts(((1, 0.0),))


class CountingClock:
    """A clock that moves by a second each time it is asked."""

    def __init__(self) -> None:
        self.num_asked = 0

    def now_s(self) -> float:
        self.num_asked += 1
        return float(self.num_asked)

    def wall_s(self) -> float:
        return self.now_s()


async def test_the_cases_are_steps_of_four_sizes_what_each_kind_adds_and_a_call():
    rows = await measure_overhead(SystemClock(), num_rounds=1, num_steps=2)
    assert [(row.case, row.metric) for row in rows] == [
        *((f"rows={num}", "step_us") for num in (1, 64, 256, 1024)),
        *((f"added={kind}", "row_us") for kind in KINDS),
        ("engine=sampler", "row_us"),
        ("run=segment", "call_us"),
        ("context=256", "call_us"),
        ("context=8064", "call_us"),
        ("live=896", "call_us"),
        ("live=896/state=busy", "call_us"),
        ("measured=256", "step_us"),
        ("measured=256", "step_percent"),
    ]
    assert rows[-2].value == pytest.approx(29.8 * rows[-1].value), "an H200's step of 256 rows takes 2.98 ms"
    assert rows[-3].value > 0  # the others are differences, about which two steps say little


async def test_programs_of_all_kinds_take_one_step_for_each_token():
    for program in KINDS.values():
        async with open_simulation(FREE, SystemClock()) as simulation:
            await step_s(simulation.control, SystemClock(), program, num_rows=5, num_steps=7)
            num_steps = NUM_FEW + (NUM_FEW + 7)
            num_before = 2  # a segment of one token before each of the two
            assert simulation.device.num_steps == num_steps + num_before
            assert simulation.device.num_rows == 5 * num_steps + num_before


def test_a_step_is_what_more_tokens_take_and_the_rest_is_the_runs():
    costs = StepCosts(((1, 1.0), (9, 2.0)))

    async def program(caller: Caller, num_tokens: int) -> None:
        await asyncio.sleep(24.0)
        await by_segment(caller, num_tokens)

    async def main(clock: Clock) -> Cost:
        async with open_simulation(costs, clock) as simulation:
            return await step_s(simulation.control, clock, program, num_rows=3, num_steps=4)

    cost = run_in_virtual_time(main)
    assert (cost.step_s, cost.run_s) == (pytest.approx(1.25), pytest.approx(24.0 / 3))


async def test_a_call_is_timed_from_its_submit_to_its_answer_and_leaves_no_page():
    async with open_simulation(FREE, SystemClock()) as simulation:
        assert await call_s(simulation.control, CountingClock(), num_live=3, num_calls=12) == 1.0
        stats = await simulation.control.stats()
        assert (stats.num_live_runs, stats.num_free_blocks) == (0, stats.num_blocks)


async def test_busy_programs_have_a_segment_each_in_flight_while_calls_are_timed():
    async with open_simulation(FREE, SystemClock()) as simulation:
        await call_s(simulation.control, SystemClock(), num_live=5, num_calls=20, is_busy=True)
        stats = await simulation.control.stats()
        assert simulation.device.num_rows >= 5 * simulation.device.num_steps - 5 > 0
        assert stats.num_live_runs == 0
        await everything_came_back(simulation.control)
