"""How fast each technique is as a program, and by a client that does the same over the OpenAI routes. Run by `command`.

The server is the real one, in this process; who asks it is a process of its own, the same for both sides, over HTTP on
loopback with connections kept alive. Cases: `technique=NAME`. Peer: `client`. Both sides take turns, and a ratio is the
median of the rounds' own ratios. docs/benchmarks.md says what is compared, and how.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from importlib.resources import files
from statistics import median
from typing import Literal, Protocol, TypeAlias

import msgspec

from loopwright.bench.rows import LATENCY_S, REQUESTS_PER_S, Metric, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.techniques.cases import Case, make_cases
from loopwright.bench.techniques.driver import Order, Timing
from loopwright.compose.one_error import one_error
from loopwright.core.control import ControlStats
from loopwright.core.errors import BadRequest, Unavailable
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import Runs
from loopwright.server.app import create_app
from loopwright.server.http import serve

Side: TypeAlias = Literal["program", "client"]
SIDES: tuple[Side, Side] = ("program", "client")
PEER = "client"
HOST = "127.0.0.1"


FORWARDS = Metric("forwards", "forwards/request", lower_is_better=True)
PREFILL_TOKENS = Metric("prefill_tokens", "tokens/request", lower_is_better=True)
DECODE_TOKENS = Metric("decode_tokens", "tokens/request", lower_is_better=True)
SERVER_CPU_MS = Metric("server_cpu_ms", "ms/request", lower_is_better=True)  # the engine's too, if it is a CPU
CLIENT_CPU_MS = Metric("client_cpu_ms", "ms/request", lower_is_better=True)
ROUND_S = Metric("round_s", "s", lower_is_better=True)  # of a side: how long the technique's share of a round takes
METRICS = (REQUESTS_PER_S, LATENCY_S, FORWARDS, PREFILL_TOKENS, DECODE_TOKENS, SERVER_CPU_MS, CLIENT_CPU_MS, ROUND_S)


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    cases = make_cases(options.scale or "small")
    for name in options.techniques:
        if name not in cases:
            raise BadRequest(f"no technique {name!r}", hint=f"there are {', '.join(cases)}", field="technique")
    chosen = [case for name, case in cases.items() if name in options.techniques or not options.techniques]
    if options.num_requests is not None:
        chosen = [replace(case, num_requests=options.num_requests) for case in chosen]
    async with open_system(options.model, prefix_cache=True) as system, driving(system, chosen) as driver:
        rows = [row for case in chosen for row in await _told(driver, case, options.num_rounds)]
    return Measured(rows=tuple(rows), workload={})


SUITE = Suite(
    name="techniques",
    title="bench techniques: as a program, and by a client that does the same over the OpenAI routes",
    measure=measure,
)


class Counted(Protocol):
    """What says how much was computed: control, or the runtime over several processes."""

    def models(self) -> tuple[ModelInfo, ...]: ...

    async def stats(self) -> ControlStats: ...


class Served(Protocol):
    """A system that is served and asked."""

    @property
    def runs(self) -> Runs: ...

    @property
    def control(self) -> Counted: ...


class Driver:
    """The other processes, which share what is to be asked, and what control says that their orders cost."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process], system: Served) -> None:
        self._processes = processes
        self._system = system
        self._numbers = _numbers()

    async def ask(self, case: Case, side: Side, num_requests: int, round_trip_s: float = 0.0) -> dict[Metric, float]:
        """The values of so many requests at once, by metric; `latency_s` is how long all of them took. With a round
        trip each HTTP request takes so much longer, as over a network."""
        inputs = [case.inputs(next(self._numbers)) for _ in range(num_requests)]
        if side == "client":
            inputs = [[{name: value for name, value in one[0].items() if name != "role"}] for one in inputs]
        program = case.program if side == "program" else None
        before, before_cpu_s = await self._system.control.stats(), time.process_time()
        shares = [inputs[place :: len(self._processes)] for place in range(len(self._processes))]
        orders = [Order(case.technique, share, program, round_trip_s) for share in shares]
        timing = _together(
            await asyncio.gather(*map(self._follow, self._processes[: len(inputs)], orders[: len(inputs)]))
        )
        after, server_cpu_s = await self._system.control.stats(), time.process_time() - before_cpu_s
        return _values(timing, before, after, num_requests) | {SERVER_CPU_MS: 1e3 * server_cpu_s / num_requests}

    async def _follow(self, process: asyncio.subprocess.Process, order: Order) -> Timing:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        await process.stdin.drain()
        line = await process.stdout.readline()
        if not line:
            raise Unavailable(f"the client of {order.technique} failed; its error is above")
        return msgspec.json.decode(line, type=Timing)


def _together(timings: Sequence[Timing]) -> Timing:
    """Of processes that were asked at once: until the last of them is done."""
    return Timing(max(one.elapsed_s for one in timings), sum(one.cpu_s for one in timings))


@asynccontextmanager
async def driving(system: Served, cases: Sequence[Case], num_processes: int = 1) -> AsyncIterator[Driver]:
    """Serves the system and starts the processes that ask it."""
    async with serving(system, cases) as url, AsyncExitStack() as stack:
        words = (sys.executable, "-m", "loopwright.bench.techniques.driver", url, system.control.models()[0].name)
        yield Driver([await stack.enter_async_context(_started(*words)) for _ in range(num_processes)], system)


@asynccontextmanager
async def _started(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def serving(system: Served, cases: Sequence[Case]) -> AsyncIterator[str]:
    """The URL at which the system is served until the end, with the programs of the cases deployed."""
    for case in cases:
        source = (files("loopwright.bench.techniques") / "programs" / f"{case.technique}.py").read_text("utf-8")
        await system.runs.deploy(case.program, source, f"{case.technique}.py")
    with one_error():
        async with asyncio.TaskGroup() as tasks:
            port = asyncio.get_running_loop().create_future()
            server = tasks.create_task(_serve(system, port))
            try:
                yield f"http://{HOST}:{await port}"
            finally:
                server.cancel()


async def _serve(system: Served, port: "asyncio.Future[int]") -> None:
    if await serve(create_app(system.runs, host=HOST), HOST, 0, port.set_result) is not None:
        raise KeyboardInterrupt


async def _told(driver: Driver, case: Case, num_rounds: int) -> list[Row]:
    """The rows of a technique, and a line of it at once: the paper's scale takes long, and a later one may fail."""
    rows = await measure_case(driver, case, num_rounds)
    by_metric = {row.metric: row for row in rows}
    ratio, round_s = by_metric[REQUESTS_PER_S.name].ratio, by_metric[ROUND_S.name]
    told = f"{ratio:.2f} of the client's requests/s" if ratio is not None else "no ratio"
    both = f"{round_s.value:.1f} s a round, the client {round_s.peer_value:.1f}"
    print(f"{case.technique} ({case.num_requests} at once): {told}; {both}", file=sys.stderr, flush=True)
    return rows


async def measure_case(driver: Driver, case: Case, num_rounds: int) -> list[Row]:
    """Rows of one technique. The sides take turns in who is first."""
    for side in SIDES:
        await driver.ask(case, side, 1)  # warm-up: programs are compiled, grammars too, and shared prefixes run
    rounds: list[dict[Side, dict[Metric, float]]] = []
    for number in range(num_rounds):
        values = {}
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            alone = await driver.ask(case, side, 1)
            together = await driver.ask(case, side, case.num_requests)
            round_s = alone[LATENCY_S] + together[LATENCY_S]
            values[side] = {**together, LATENCY_S: alone[LATENCY_S], ROUND_S: round_s}
        rounds.append(values)
    return [_row(case, metric, rounds) for metric in METRICS]


def _row(case: Case, metric: Metric, rounds: Sequence[dict[Side, dict[Metric, float]]]) -> Row:
    by_side = {side: [values[side][metric] for values in rounds] for side in SIDES}
    row = measured(SUITE.name, case_name(technique=case.technique), metric, by_side["program"])
    ratios = [ours / theirs for ours, theirs in zip(by_side["program"], by_side["client"], strict=True) if theirs]
    return row.against(PEER, median(by_side["client"]), median(ratios) if ratios else None)


def _values(timing: Timing, before: ControlStats, after: ControlStats, num_requests: int) -> dict[Metric, float]:
    return {
        REQUESTS_PER_S: num_requests / timing.elapsed_s,
        LATENCY_S: timing.elapsed_s,
        FORWARDS: (after.num_steps - before.num_steps) / num_requests,
        PREFILL_TOKENS: (after.num_prefill_tokens - before.num_prefill_tokens) / num_requests,
        DECODE_TOKENS: (after.num_decode_tokens - before.num_decode_tokens) / num_requests,
        CLIENT_CPU_MS: 1e3 * timing.cpu_s / num_requests,
    }


def _numbers() -> Iterator[str]:
    """Seven digits that have not been before: no request finds its own text in the prefix cache."""
    draw = random.Random(0)
    return iter([str(one) for one in draw.sample(range(1_000_000, 10_000_000), 100_000)])
