"""Agents that call tools, as programs beside the model and as clients at a distance of it. Run by `command`.

The paper's ReACT load at `--scale paper`: 128 agents at once, 8 calls of a tool that takes 100 ms, 16 tokens between.
The client keeps its connections, and the server's prefix cache is on. Cases `round_trip_ms=20/agents=N`: what a network
takes there and back, which the client pays for each of its requests and a program once. `gain` is how many times as
many agents a second are served as programs; `predicted_gain` is what arithmetic says, from the times of both sides
without a network, and `network_gain` what it says if requests cost nothing but their way: from the program's alone.
With `--workers N` programs run in N processes, control and engine in one of their own, and clients in up to four.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from loopwright.bench.opened import opened, opened_workers
from loopwright.bench.rows import LATENCY_S, REQUESTS_PER_S, Metric, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.techniques.cases import Case, make_cases
from loopwright.bench.techniques.suite import (
    CLIENT_CPU_MS,
    PEER,
    PREFILL_TOKENS,
    SIDES,
    Driver,
    Served,
    Side,
    driving,
)  # fmt: skip
from loopwright.compose.config import num_cores

ROUND_TRIPS_MS = (0, 20, 100)
GAIN = Metric("gain", "×", lower_is_better=False)
PREDICTED_GAIN = Metric("predicted_gain", "×", lower_is_better=False)
NETWORK_GAIN = Metric("network_gain", "×", lower_is_better=False)
BESIDES = (PREFILL_TOKENS, CLIENT_CPU_MS)
"""What an agent takes of both sides."""

_SUITE = "agents"


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds until all agents were done, by side, in each round; and the other metrics of the waves."""

    program: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    besides: dict[Side, list[dict[Metric, float]]] = field(default_factory=lambda: {side: [] for side in SIDES})

    @property
    def gain(self) -> float:
        """The median of the rounds' own ratios."""
        return median(theirs / ours for ours, theirs in zip(self.program, self.client, strict=True))


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    case = make_cases(options.scale or ("small" if options.device is None else "paper"))["react"]
    async with AsyncExitStack() as stack:
        system: Served
        if options.num_workers:
            system = await stack.enter_async_context(opened_workers(options, prefix_cache=True))
        else:
            system = await stack.enter_async_context(opened(options, open_system, prefix_cache=True))
        driver = await stack.enter_async_context(driving(system, [case], num_clients(options)))
        await warm_up(driver, case)
        found = await measure_rounds(driver, case, ROUND_TRIPS_MS, options.num_rounds)
    return Measured(rows=tuple(rows_of(case, found)), workload={})


SUITE = Suite(name=_SUITE, title="bench agents: ReACT as programs, and by clients at a distance", measure=measure)


def num_clients(options: Options) -> int:
    """Processes that ask: users have a machine each, so none waits for what another one's client computes."""
    return max(1, min(4, num_cores() // 4)) if options.num_workers else 1


async def warm_up(driver: Driver, case: Case) -> None:
    """A wave of each side, as large as those that are measured: connections, programs and steps of all sizes."""
    for side in SIDES:
        await driver.ask(case, side, case.num_requests)


async def measure_rounds(
    driver: Driver, case: Case, round_trips_ms: Sequence[int], num_rounds: int
) -> dict[int, Elapsed]:
    """Both sides at each distance, in rounds: whatever changes meanwhile does so for all. They take turns in who is
    first."""
    found = {ms: Elapsed() for ms in round_trips_ms}
    for number in range(num_rounds):
        for ms, elapsed in found.items():
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                values = await driver.ask(case, side, case.num_requests, ms / 1e3)
                (elapsed.program if side == "program" else elapsed.client).append(values[LATENCY_S])
                elapsed.besides[side].append(values)
    return found


def predicted_gain(near: Elapsed, num_requests: int, round_trip_s: float) -> float:
    """Of clients at a distance, each of whose `num_requests` goes there and back, where a program's one does."""
    return (median(near.client) + num_requests * round_trip_s) / (median(near.program) + round_trip_s)


def network_gain(near: Elapsed, num_requests: int, round_trip_s: float) -> float:
    """The same of clients whose requests cost nothing but their way."""
    return predicted_gain(Elapsed(near.program, near.program), num_requests, round_trip_s)


def rows_of(case: Case, found: dict[int, Elapsed]) -> list[Row]:
    """Rows of each distance; the first one is without a network."""
    calls: Any = case.arguments["calls"]
    near = found[ROUND_TRIPS_MS[0]]
    rows: list[Row] = []
    for ms, elapsed in found.items():
        name = case_name(round_trip_ms=ms, agents=case.num_requests)
        per_s, client_per_s = (_rates(one, case.num_requests) for one in (elapsed.program, elapsed.client))
        rows += [
            measured(_SUITE, name, REQUESTS_PER_S, per_s).against(PEER, median(client_per_s), elapsed.gain),
            measured(_SUITE, name, LATENCY_S, elapsed.program).against(PEER, median(elapsed.client)),
            measured(_SUITE, name, GAIN, [elapsed.gain]),
            measured(_SUITE, name, PREDICTED_GAIN, [predicted_gain(near, calls, ms / 1e3)]),
            measured(_SUITE, name, NETWORK_GAIN, [network_gain(near, calls, ms / 1e3)]),
            *(_beside(name, metric, elapsed) for metric in BESIDES),
        ]
    return rows


def _beside(name: str, metric: Metric, elapsed: Elapsed) -> Row:
    ours, theirs = ([values[metric] for values in elapsed.besides[side]] for side in SIDES)
    row = measured(_SUITE, name, metric, ours)
    return row.against(PEER, median(theirs), median(ours) / median(theirs) if median(theirs) else None)


def _rates(elapsed_s: Sequence[float], num_agents: int) -> list[float]:
    return [num_agents / one_s for one_s in elapsed_s]
