"""What control costs the host: a step around an engine that answers at once, and a call that needs no engine.

Run by `command`. Cases: `rows=N`, a step of N segments (aim: 60 µs + 2 µs a row), by how much longer it takes to make
more tokens; `run=segment`, what a run of one segment takes beside its steps; `added=KIND`, what each further row of a
step costs the host if it is of that kind; `engine=sampler`, what a row's sampler takes the real engine: the others
leave it out; `context=N`, a call of one token in a context of so many; `live=896`, a call that control answers
while so many programs do nothing (aim: 40 µs); `…/state=busy`, while each of them has a segment running;
`measured=256`, what the metrics add to a step of so many segments, in turns with one that nobody measures (aim: 1 % of
the step that an H200 takes for them). Spans are made when a run is over, so they add nothing to its steps.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from loopwright.bench.devices import DEVICES
from loopwright.bench.rows import CALL_US, ROW_US, STEP_US, Metric, Row, case_name, measured
from loopwright.bench.sessions import (
    QUEUE,
    Caller,
    by_sampler,
    by_segment,
    by_streaming,
    by_token,
    by_watching,
    segment_call,
)
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.together import all_of
from loopwright.compose.simulated import open_simulation
from loopwright.compose.small_engine import open_small_engine
from loopwright.control.config import ControlConfig
from loopwright.core.calls import AllocatePages, CreateQueue, FreePages
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.control import Control
from loopwright.core.ids import PageName
from loopwright.core.instrument import Meter
from loopwright.core.step_costs import StepCosts

Program: TypeAlias = Callable[[Caller, int], Awaitable[None]]
"""Generates so many tokens in steps of one token, as the only thing it does."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Host time: of a step, and of a run beside its steps, which is its opening, its call, and its end."""

    step_s: float
    run_s: float


KINDS: dict[str, Program] = {
    "segment": by_segment, "streamed": by_streaming, "sampler": by_sampler, "watched": by_watching, "program": by_token,
}  # fmt: skip
"""Ways to generate, by the name of their case."""

NUM_ROWS = (1, 64, 256, 1024)
NUM_STEPS = 128  # by so many tokens the longer segment exceeds the shorter one, of NUM_FEW
NUM_FEW = 2
NUM_ROWS_ADDED = 256  # what a row adds is measured from 1 to so many
CONTEXTS = (256, 8064)  # tokens before the call; the larger one leaves room for those that it makes
NUM_CONTEXT_CALLS = 64
NUM_ENGINE_ROWS = 32
NUM_ENGINE_STEPS = 16
VOCAB_SIZE = 49_152  # of the engine's model: the default model's
NUM_LIVE = 896
NUM_CALLS = 2000
NUM_TURNS = 4  # in each round, of steps that are measured and of steps that are not
NUM_BUSY_CALLS = 200  # there may be a step of all programs between two of them

OWN_PAGE = PageName(1 << 20)  # no segment grows so far

STEP_PERCENT = Metric("step_percent", "% of a step", lower_is_better=True)

_SUITE = "overhead"
_CONFIG = ControlConfig(max_batch_rows=1024, max_batch_tokens=8192)


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    return Measured(rows=tuple(await measure_overhead(SystemClock(), options.num_rounds)), workload={})


SUITE = Suite(name=_SUITE, title="bench overhead: host time of control, engine excluded", measure=measure)


async def measure_overhead(clock: Clock, num_rounds: int, num_steps: int = NUM_STEPS) -> list[Row]:
    """Rows of all cases; each value is the median over the rounds."""
    async with open_simulation(StepCosts(((1, 0.0),)), clock, _CONFIG) as simulation:
        control = simulation.control
        costs: dict[tuple[str, int], list[Cost]] = {("segment", num): [] for num in NUM_ROWS}
        costs |= {(kind, num): [] for kind in KINDS for num in (1, NUM_ROWS_ADDED)}
        contexts: dict[int, list[float]] = {num: [] for num in CONTEXTS}
        calls_s: list[float] = []
        busy_s: list[float] = []
        metrics_s: list[float] = []
        for _ in range(num_rounds):
            for (kind, num_rows), values in costs.items():
                values.append(await step_s(control, clock, KINDS[kind], num_rows, num_steps))
            for num_tokens, values_s in contexts.items():
                values_s.append(await context_s(control, clock, num_tokens))
            calls_s.append(await call_s(control, clock, NUM_LIVE))
            busy_s.append(await call_s(control, clock, NUM_LIVE, NUM_BUSY_CALLS, is_busy=True))
            metrics_s.append(await metrics_s_of(clock, num_steps))
    rows = [_row(STEP_US, [one.step_s for one in costs["segment", num]], rows=num) for num in NUM_ROWS]
    for kind in KINDS:
        pairs = zip(costs[kind, 1], costs[kind, NUM_ROWS_ADDED], strict=True)
        added_s = [(many.step_s - one.step_s) / (NUM_ROWS_ADDED - 1) for one, many in pairs]
        rows.append(_row(ROW_US, added_s, added=kind))
    rows.append(_row(ROW_US, [await sampler_s(clock, num_steps) for _ in range(num_rounds)], engine="sampler"))
    rows.append(_row(CALL_US, [one.run_s for one in costs["segment", NUM_ROWS_ADDED]], run="segment"))
    rows += [_row(CALL_US, contexts[num], context=num) for num in CONTEXTS]
    rows.append(_row(CALL_US, calls_s, live=NUM_LIVE))
    rows.append(_row(CALL_US, busy_s, live=NUM_LIVE, state="busy"))
    shares = [100 * one_s / DEVICES["h200"].rows_s(NUM_ROWS_ADDED) for one_s in metrics_s]
    return [
        *rows,
        _row(STEP_US, metrics_s, measured=NUM_ROWS_ADDED),
        measured(_SUITE, case_name(measured=NUM_ROWS_ADDED), STEP_PERCENT, shares),
    ]


def _row(metric: Metric, values_s: Sequence[float], **case: str | int) -> Row:
    return measured(_SUITE, case_name(**case), metric, [1e6 * one_s for one_s in values_s])


async def step_s(control: Control, clock: Clock, program: Program, num_rows: int, num_steps: int) -> Cost:
    """What each of `num_steps` more steps of so many rows takes, and what else a row's run takes."""
    few_s, num_few = await _elapsed_s(control, clock, program, num_rows, NUM_FEW)
    many_s, num_many = await _elapsed_s(control, clock, program, num_rows, NUM_FEW + num_steps)
    step_s = (many_s - few_s) / (num_many - num_few)
    return Cost(step_s, (few_s - num_few * step_s) / num_rows)


async def _elapsed_s(
    control: Control, clock: Clock, program: Program, num_rows: int, num_tokens: int
) -> tuple[float, int]:
    """Seconds from the first run's start to the last one's end, and how many steps they took."""
    with Caller(control, "overhead-before") as caller:
        await by_segment(caller, 1)  # comes after what the measurement before this one left running
    gc.collect()
    before = await control.stats()
    started_s = clock.now_s()
    await _run_all(control, program, num_rows, num_tokens)
    elapsed_s = clock.now_s() - started_s
    return elapsed_s, (await control.stats()).num_steps - before.num_steps


async def _run_all(control: Control, program: Program, num_rows: int, num_tokens: int) -> None:
    async def run(index: int) -> None:
        with Caller(control, f"overhead-{index}") as caller:
            await program(caller, num_tokens)

    await all_of(run(index) for index in range(num_rows))


async def metrics_s_of(clock: Clock, num_steps: int, num_rows: int = NUM_ROWS_ADDED) -> float:
    """Seconds that a step of so many segments takes longer if it is measured, and the metrics are asked for once."""
    step_s_of: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * NUM_TURNS):
        is_measured = turn % 4 in (1, 2)  # each goes first as often as the other
        meter = Meter({"model": "simulated"}) if is_measured else None
        async with open_simulation(StepCosts(((1, 0.0),)), clock, _CONFIG, meter=meter) as simulation:
            cost = await step_s(simulation.control, clock, by_segment, num_rows, num_steps)
            started_s = clock.now_s()
            await simulation.control.metrics()
            told_s = clock.now_s() - started_s if is_measured else 0.0
            step_s_of[is_measured].append(cost.step_s + told_s / num_steps)
    return median(step_s_of[True]) - median(step_s_of[False])


async def sampler_s(clock: Clock, num_steps: int, num_rows: int = NUM_ENGINE_ROWS) -> float:
    """Seconds that a row with a traced sampler takes the engine more than a row without, of a model as small as can be
    with a real vocabulary. The first steps of each kind do not count."""
    async with open_small_engine(VOCAB_SIZE, clock, _CONFIG) as control:
        step_s: list[float] = []
        for program in (by_segment, by_sampler):
            before = await control.stats()
            for num_tokens in (NUM_FEW, NUM_FEW + min(num_steps, NUM_ENGINE_STEPS)):
                before = await control.stats()
                await _run_all(control, program, num_rows, num_tokens)
            after = await control.stats()
            step_s.append((after.busy_s - before.busy_s) / (after.num_steps - before.num_steps))
    return (step_s[1] - step_s[0]) / num_rows


async def context_s(control: Control, clock: Clock, num_tokens: int, num_calls: int = NUM_CONTEXT_CALLS) -> float:
    """Median seconds of a call of one token at the end of a context of `num_tokens`, from its making to its answer."""
    taken_s: list[float] = []
    started_s = 0.0

    async def turn() -> None:
        nonlocal started_s
        now_s = clock.now_s()
        taken_s.append(now_s - started_s)
        started_s = now_s

    with Caller(control, f"context-{num_tokens}") as caller:
        await by_token(caller, num_calls + 2, prompt_len=num_tokens, turn=turn)
    return median(taken_s[2:])  # the first is before the prompt, and the second the prompt's


async def call_s(
    control: Control, clock: Clock, num_live: int, num_calls: int = NUM_CALLS, *, is_busy: bool = False
) -> float:
    """Median seconds from submitting a call that control answers to its answer. So many runs are live, and each of
    them makes calls, one after another; if they are busy, beside a segment of its own that never ends."""
    callers = [Caller(control, f"live-{index}") for index in range(num_live)]
    taken_s: list[float] = []
    try:
        for caller in callers:
            await caller.call(CreateQueue(queue=QUEUE))
            if is_busy:
                caller.begin(segment_call(control.models()[0].max_context))
        pages = (OWN_PAGE,)
        for number in range(num_calls):
            caller = callers[number // 2 % num_live]
            call = FreePages(queue=QUEUE, pages=pages) if number % 2 else AllocatePages(queue=QUEUE, pages=pages)
            started_s = clock.now_s()
            await caller.call(call)
            taken_s.append(clock.now_s() - started_s)
            await asyncio.sleep(0)
    finally:
        for caller in callers:
            caller.close()
    return median(taken_s)
