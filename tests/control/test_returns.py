"""A step waits for programs that choose a token, if it is worth it: in virtual time, over the real control layer."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from loopwright.bench.sessions import Caller, by_segment, by_token
from loopwright.compose.simulated import SHAPE, open_simulation
from loopwright.control.config import ControlConfig
from loopwright.core.batch import Batch, StepResult
from loopwright.core.clock import Clock
from loopwright.core.executor import StepsAhead
from loopwright.core.step_costs import StepCosts
from loopwright.core.virtual_time import run_in_virtual_time

STEP_S = 0.01
NUM = 32


class Load:
    """Programs that choose each token: one host has them all, and each choice takes it `host_s`."""

    def __init__(self, host_s: float, num_tokens: int = 60, config: ControlConfig | None = None) -> None:
        self.host_s, self.num_tokens = host_s, num_tokens
        self.sizes: Counter[int] = Counter()  # of steps
        self._config = config or ControlConfig(prefix_cache=False)

    def steps_a_token(
        self,
        pause_s: Callable[[int, int], float] = lambda program, token: 0.0,
        num_segments: int = 0,
        steps_ahead: StepsAhead = "usual",
        num_tokens: Callable[[int], int] | None = None,
    ) -> float:
        """How many times a step's time a token takes, of all but the last program. One pauses before a token, beside
        what the host takes, and makes `num_tokens` of its own."""

        async def main(clock: Clock) -> float:
            shape = replace(SHAPE, steps_ahead=steps_ahead)
            async with open_simulation(StepCosts(((1, STEP_S),)), clock, self._config, shape) as simulation:
                submit, host = simulation.device.submit, asyncio.Lock()

                def counted(batch: Batch) -> asyncio.Future[StepResult]:
                    self.sizes[batch.num_rows] += 1
                    return submit(batch)

                simulation.device.submit = counted  # type: ignore[method-assign, assignment]

                async def program(number: int) -> None:
                    num = self.num_tokens if num_tokens is None else num_tokens(number)
                    tokens = iter(range(num))

                    async def turn() -> None:
                        await asyncio.sleep(pause_s(number, next(tokens)))
                        async with host:
                            await asyncio.sleep(self.host_s)

                    with Caller(simulation.control, f"program {number}") as caller:
                        await by_token(caller, num, turn=turn)

                async def segment(number: int) -> None:
                    with Caller(simulation.control, f"segment {number}") as caller:
                        await by_segment(caller, 3 * self.num_tokens)

                began_s = clock.now_s()
                async with asyncio.TaskGroup() as tasks:
                    segments = [tasks.create_task(segment(number)) for number in range(num_segments)]
                    programs = [tasks.create_task(program(number)) for number in range(NUM)]
                    await asyncio.wait(programs[:-1])
                    taken_s = clock.now_s() - began_s
                    for one in segments:
                        one.cancel()
                return taken_s / self.num_tokens / STEP_S

        return run_in_virtual_time(main)


@pytest.mark.parametrize("all_s", [0.1, 0.6])
def test_programs_that_are_all_back_within_a_steps_time_share_every_step(all_s: float) -> None:
    load = Load(all_s * STEP_S / NUM)
    assert load.steps_a_token() == pytest.approx(1 + all_s, abs=0.1)
    assert load.sizes[NUM] > 0.9 * load.num_tokens


@pytest.mark.parametrize("all_s", [1.3, 1.9])
def test_of_slower_ones_some_compute_while_the_others_choose(all_s: float) -> None:
    """What is better is tried: together a token would take a step and all of that."""
    load = Load(all_s * STEP_S / NUM, 250)
    assert load.steps_a_token() == pytest.approx(2.0, abs=0.3)
    assert load.sizes[NUM] < 0.3 * load.num_tokens


def test_it_is_found_that_others_are_faster_now() -> None:
    """Slow at first, so that they compute apart; then quick enough to share every step."""
    load = Load(1.5 * STEP_S / NUM, 400)

    def pause_s(program: int, token: int) -> float:
        load.host_s = (1.5 if token < 100 else 0.1) * STEP_S / NUM
        return 0.0

    assert load.steps_a_token(pause_s) < (100 * 2.3 + 300 * 1.4) / 400
    assert load.sizes[NUM] > 200


def test_nobody_waits_for_one_that_mostly_takes_longer_than_a_step() -> None:
    load = Load(0.3 * STEP_S / NUM)
    found = load.steps_a_token(lambda program, token: 1.8 * STEP_S if program == NUM - 1 and token > 5 else 0.0)
    assert found == pytest.approx(1.3, abs=0.1)
    assert load.sizes[NUM - 1] > load.num_tokens / 3


def test_who_goes_away_is_waited_for_no_longer_than_a_step_and_then_not_at_once_again() -> None:
    load = Load(0.2 * STEP_S / NUM)
    found = load.steps_a_token(lambda program, token: 3 * STEP_S if program == 3 and token == 30 else 0.0)
    assert found == pytest.approx(1.2 + 4 / load.num_tokens, abs=0.1)


@pytest.mark.parametrize("steps_ahead", ["usual", "never"])
def test_a_segments_next_token_waits_for_no_program(steps_ahead: StepsAhead) -> None:
    load = Load(0.6 * STEP_S / NUM)
    taken = load.steps_a_token(num_segments=1, steps_ahead=steps_ahead) * load.num_tokens
    assert sum(load.sizes.values()) > 0.95 * taken, "steps were held up"


def test_runs_that_end_one_after_the_other_hold_nobody_up() -> None:
    load = Load(0.2 * STEP_S / NUM)
    found = load.steps_a_token(num_tokens=lambda program: 10 + 50 * program // NUM)
    assert found < 1.2
    assert max(load.sizes) == NUM
    assert sum(load.sizes.values()) < 1.2 * load.num_tokens


def test_other_policies_decide_by_themselves() -> None:
    load = Load(0.1 * STEP_S / NUM, 20, ControlConfig(policy="eager", prefix_cache=False))
    load.steps_a_token()
    assert load.sizes == {1: NUM * load.num_tokens}
