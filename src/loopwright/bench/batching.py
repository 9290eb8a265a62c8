"""How many requests a second each batching policy serves, on the real engine and on simulated ones. Run by `command`.

Cases `policy=P/n=N` are N segments that start together, one token in, so that every step decodes; `case=ideal/n=N` is
what adaptive would reach if N cost it nothing but the larger steps: its value at n=1 times T(1) · N / T(N), T(N) being
the engine's time for a step of N rows, measured in the same run; `case=adaptive_by_…/n=N` compares with that and with
the best other policy. Cases `device=D/policy=P/n=128` are programs that look at every token, in virtual time, and
`…/calls=segment` the same as segments; `device=paper/…` is what the paper reports.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from loopwright.bench.devices import DEVICES, PAPER_REQUESTS_PER_S
from loopwright.bench.rows import RATIO, REQUESTS_PER_S, Metric, Row, case_name, measured
from loopwright.bench.sessions import Caller, by_segment, by_token
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite, System
from loopwright.bench.together import all_of
from loopwright.compose.simulated import open_simulation
from loopwright.control.config import ControlConfig
from loopwright.control.policies import PolicyName
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.control import Control
from loopwright.core.errors import InternalError
from loopwright.core.step_costs import StepCosts
from loopwright.core.virtual_time import run_in_virtual_time

POLICIES: tuple[PolicyName, ...] = ("eager", "k-only", "t-only", "adaptive")  # adaptive beside its nearest rival
NUM_REQUESTS = (1, 8, 32, 128)
NUM_PASSES = 8  # of a round with one request, half as many with two, and so on: short ones see the most noise
NUM_TOKENS_OUT = 8  # enough to fall out of step, few enough for a batch of one row to end today

NUM_SIMULATED = 128
SIMULATED_TOKENS_IN, SIMULATED_TOKENS_OUT = 16, 64
START_SPREAD_S = 0.05  # programs start evenly over so long: the paper's launches take 10 to 50 ms
TURN_S = 0.2e-3  # between a result and the program's next call; the paper's calls take 0.01 to 0.3 ms

_SUITE = "batching"


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    clock = SystemClock()
    async with open_system(options.model) as system:
        rows = await measure_policies(system, clock, options.num_rounds)
    rows += await asyncio.to_thread(simulate_policies)
    return Measured(rows=tuple(rows), workload={})


SUITE = Suite(name=_SUITE, title="bench batching: four policies, real engine and simulated devices", measure=measure)


async def measure_policies(
    system: System, clock: Clock, num_rounds: int, num_requests: Sequence[int] = NUM_REQUESTS
) -> list[Row]:
    """Rows of the real engine; each value is the median over the rounds. The first of `num_requests` is 1.

    A shared machine changes its speed within a round. So what is compared is measured side by side, the engine's step
    before and after adaptive's run, and a ratio is the median of the rounds' ratios."""
    await _requests_per_s(system.control, clock, 1)  # warm-up
    values: dict[tuple[str, Metric], list[float]] = defaultdict(list)
    per_step: list[float] = []  # requests that one request in a step is worth: 1 by its tokens, if control is free
    one_round = [num for num in num_requests for _ in range(max(1, NUM_PASSES // num))]
    for n in one_round * num_rounds:
        rates, step_s = await _round(system, clock, n)
        adaptive = rates["adaptive"]
        if n == 1:
            per_step.append(adaptive * step_s)
        ideal = median(per_step) * n / step_s
        for policy, rate in rates.items():
            values[case_name(policy=policy, n=n), REQUESTS_PER_S].append(rate)
        values[case_name(case="ideal", n=n), REQUESTS_PER_S].append(ideal)
        values[case_name(case="adaptive_by_ideal", n=n), RATIO].append(adaptive / ideal)
        best = max(rate for policy, rate in rates.items() if policy != "adaptive")
        values[case_name(case="adaptive_by_best_other", n=n), RATIO].append(adaptive / best)
    order = sorted(values.items(), key=lambda one: one[0][0].rpartition("/")[0])
    return [measured(_SUITE, case, metric, found) for (case, metric), found in order]


async def _round(system: System, clock: Clock, num_requests: int) -> tuple[dict[PolicyName, float], float]:
    """Requests a second under each policy, and the engine's time for a step of all."""
    rates: dict[PolicyName, float] = {}
    steps_s: list[float] = []
    for policy in POLICIES:
        if policy == "adaptive":
            steps_s.append(await measure_step_s(system.control, num_requests))
        async with system.control_with(policy) as control:
            rates[policy] = await _requests_per_s(control, clock, num_requests)
        if policy == "adaptive":
            steps_s.append(await measure_step_s(system.control, num_requests))
    return rates, fmean(steps_s)


async def measure_step_s(control: Control, num_rows: int) -> float:
    """The engine's time for a step of so many rows of one token, waiting for control not included."""
    before = await control.stats()
    await _run_together(control, num_rows)
    after = await control.stats()
    num_steps = after.num_steps - before.num_steps
    if (num_ran := after.num_rows - before.num_rows) != num_steps * num_rows:
        raise InternalError(f"{num_ran} rows in {num_steps} steps; each should have had {num_rows}")
    return (after.busy_s - before.busy_s) / num_steps


def simulate_policies() -> list[Row]:
    """Rows of the simulated devices and of the paper. For a thread without a running loop."""
    n = NUM_SIMULATED
    values = {
        case_name(device=device, policy=policy, n=n): simulate(costs, policy, n)
        for device, costs in DEVICES.items()
        for policy in POLICIES
    }
    for device, costs in DEVICES.items():
        values[case_name(device=device, policy="adaptive", n=n, calls="segment")] = simulate(
            costs, "adaptive", n, is_segment=True
        )
    values |= {case_name(device="paper", policy=policy, n=128): one for policy, one in PAPER_REQUESTS_PER_S.items()}
    return [measured(_SUITE, case, REQUESTS_PER_S, [value]) for case, value in values.items()]


def simulate(costs: StepCosts, policy: PolicyName, num_programs: int, *, is_segment: bool = False) -> float:
    """Requests a second of virtual time. For a thread without a running loop."""

    async def turn() -> None:
        await asyncio.sleep(TURN_S)

    async def program(control: Control, index: int) -> None:
        await asyncio.sleep(START_SPREAD_S * index / num_programs)
        with Caller(control, f"program-{index}") as caller:
            if is_segment:
                await by_segment(caller, SIMULATED_TOKENS_OUT, prompt_len=SIMULATED_TOKENS_IN)
            else:
                await by_token(caller, SIMULATED_TOKENS_OUT, prompt_len=SIMULATED_TOKENS_IN, turn=turn)

    async def main(clock: Clock) -> float:
        async with open_simulation(costs, clock, ControlConfig(policy=policy)) as simulation:
            started_s = clock.now_s()
            await all_of(program(simulation.control, index) for index in range(num_programs))
            return num_programs / (clock.now_s() - started_s)

    return run_in_virtual_time(main)


async def _requests_per_s(control: Control, clock: Clock, num_requests: int) -> float:
    started_s = clock.now_s()
    await _run_together(control, num_requests)
    return num_requests / (clock.now_s() - started_s)


async def _run_together(control: Control, num_requests: int) -> None:
    vocab_size = control.models()[0].vocab_size

    async def request(index: int) -> None:
        with Caller(control, f"bench-{index}") as caller:
            await by_segment(caller, NUM_TOKENS_OUT, first_token=(vocab_size // 2 + index) % vocab_size)

    await all_of(request(index) for index in range(num_requests))
