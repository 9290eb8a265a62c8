"""The batching suite: against a control layer whose steps cost a known time, and on the simulated devices."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from loopwright.bench.batching import POLICIES, measure_policies, measure_step_s, simulate, simulate_policies
from loopwright.bench.devices import DEVICES, L4
from loopwright.compose.simulated import open_simulation
from loopwright.control.config import ControlConfig
from loopwright.core.clock import Clock
from loopwright.core.errors import InternalError
from loopwright.core.step_costs import StepCosts
from loopwright.core.virtual_time import run_in_virtual_time

LINEAR = StepCosts(((1, 1.0), (9, 2.0)))


class SimulatedSystem:
    """A system of the suite whose engine is a simulated device."""

    def __init__(self, control, costs: StepCosts, clock: Clock) -> None:
        self.control = control
        self._costs, self._clock = costs, clock

    @asynccontextmanager
    async def control_with(self, policy):
        async with open_simulation(self._costs, self._clock, ControlConfig(policy=policy)) as simulation:
            yield simulation.control


def measured_values(costs: StepCosts) -> dict[str, float]:
    async def main(clock: Clock) -> dict[str, float]:
        async with open_simulation(costs, clock) as simulation:
            system = SimulatedSystem(simulation.control, costs, clock)
            rows = await measure_policies(system, clock, num_rounds=2, num_requests=(1, 8))
        return {row.case: row.value for row in rows}

    return run_in_virtual_time(main)


def test_requests_per_second_and_the_ideal_are_what_the_costs_make_them():
    values = measured_values(LINEAR)
    assert values["policy=adaptive/n=1"] == pytest.approx(1 / 8)
    assert values["policy=adaptive/n=8"] == pytest.approx(8 / (8 * 1.875))
    assert values["policy=eager/n=8"] == pytest.approx(8 / (8 * 8 * 1.0))
    assert values["policy=k-only/n=8"] == pytest.approx(8 / (8 * 1.875))
    assert values["policy=t-only/n=8"] == pytest.approx(8 / (8 * (1.875 + 0.016)))
    assert values["case=ideal/n=1"] == pytest.approx(values["policy=adaptive/n=1"])
    assert values["case=ideal/n=8"] == pytest.approx((1 / 8) * 8 * 1.0 / 1.875)
    assert values["case=adaptive_by_ideal/n=8"] == pytest.approx(1.0)
    assert values["case=adaptive_by_best_other/n=8"] == pytest.approx(1.0)  # k-only's 8
    assert len(values) == 2 * (len(POLICIES) + 3)


def test_the_time_of_a_step_is_the_engines_and_steps_of_another_size_are_no_measurement():
    async def main(clock: Clock) -> float:
        async with open_simulation(LINEAR, clock) as simulation:
            step_s = await measure_step_s(simulation.control, 5)
        async with open_simulation(LINEAR, clock, ControlConfig(max_batch_rows=2, max_batch_tokens=4)) as simulation:
            with pytest.raises(InternalError, match="each should have had 5"):
                await measure_step_s(simulation.control, 5)
        return step_s

    assert run_in_virtual_time(main) == pytest.approx(1.5)


def test_the_rows_of_the_devices_are_four_policies_segments_and_the_papers_own_values():
    values = {row.case: row.value for row in simulate_policies()}
    cases = [f"device={device}/policy={policy}/n=128" for device in DEVICES for policy in POLICIES]
    cases += [f"device={device}/policy=adaptive/n=128/calls=segment" for device in DEVICES]
    cases += [f"device=paper/policy={policy}/n=128" for policy in ("eager", "k-only", "t-only", "adaptive")]
    assert list(values) == cases
    assert values["device=paper/policy=adaptive/n=128"] == 84.85
    for device in DEVICES:
        *others, adaptive = (values[f"device={device}/policy={policy}/n=128"] for policy in POLICIES)
        assert adaptive >= 0.97 * max(others)
        assert values[f"device={device}/policy=adaptive/n=128/calls=segment"] > adaptive


def test_a_simulation_repeats():
    assert simulate(L4, "adaptive", 16) == simulate(L4, "adaptive", 16)


async def test_simulations_run_beside_a_running_loop():
    assert await asyncio.to_thread(simulate, L4, "eager", 2) > 0
