"""What the host takes of a step, with steps ahead and without: by control alone, and the whole way over HTTP. Run by
`command`.

Cases: `over=control/rows=N/ahead=off`, N streams of tokens told one by one to programs without a sandbox;
`over=http/…`, N streamed chat completions that another process reads. `host_us` is the CPU time of this process's event
loop for a step, with everything that it does for it (aim: 1,200 at 256 rows); `step_ms` is from step to step. With
`--device` the engine is a simulated device, whose `idle_percent` is the part of a step in which it has nothing to do.
"""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

import msgspec

from loopwright.bench.opened import opened
from loopwright.bench.rows import STEP_MS, TOKENS_PER_S, Metric, Row, case_name, measured
from loopwright.bench.serving import client, served
from loopwright.bench.sessions import Caller, by_streaming
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite, System
from loopwright.bench.together import all_of
from loopwright.core.errors import InternalError

HOST_US = Metric("host_us", "µs/step", lower_is_better=True)
IDLE_PERCENT = Metric("idle_percent", "%", lower_is_better=True)
TOKENS_PER_CORE_S = Metric("tokens_per_core_s", "tokens/s of CPU", lower_is_better=False)

NUM_ROWS = (1, 32, 128, 256)
NUM_HTTP_ROWS = (256,)
NUM_FEW, NUM_MORE = 32, 96  # what is measured is what so many more tokens take than few

Over: TypeAlias = Literal["control", "http"]
Streams: TypeAlias = Callable[[System, int, int], Awaitable[None]]
"""So many streams at once, of so many tokens each, to their end."""

_SUITE = "steps"


@dataclass(frozen=True, slots=True)
class Load:
    """How much a measurement is."""

    num_rows: tuple[int, ...] = NUM_ROWS
    num_http_rows: tuple[int, ...] = NUM_HTTP_ROWS
    num_more: int = NUM_MORE


@dataclass(frozen=True, slots=True)
class Spent:
    """In all: seconds, seconds of CPU, seconds in which the device computed if it says so, and steps."""

    wall_s: float
    cpu_s: float
    device_s: float | None
    num_steps: int

    def less(self, other: "Spent") -> "Spent":
        """What this has more."""
        device_s = None if self.device_s is None or other.device_s is None else self.device_s - other.device_s
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s, device_s, self.num_steps - other.num_steps)

    def values(self, num_rows: int) -> dict[Metric, float]:
        """By metric, of steps with so many rows."""
        if self.num_steps < 1:
            raise InternalError(f"{self.num_steps} more steps for more tokens")
        num_tokens = num_rows * self.num_steps
        values = {
            STEP_MS: 1e3 * self.wall_s / self.num_steps,
            HOST_US: 1e6 * self.cpu_s / self.num_steps,
            TOKENS_PER_S: num_tokens / self.wall_s,
            TOKENS_PER_CORE_S: num_tokens / self.cpu_s,
        }
        return values if self.device_s is None else values | {IDLE_PERCENT: 100 * (1 - self.device_s / self.wall_s)}


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    return Measured(rows=tuple(await measure_steps(options, open_system)), workload={})


SUITE = Suite(name=_SUITE, title="bench steps: what the host takes of a step, in steady decode", measure=measure)


async def measure_steps(options: Options, open_system: OpenSystem, load: Load = Load()) -> list[Row]:
    """Rows of all cases. Off and on take turns; a ratio is that of the medians."""
    found: dict[tuple[Over, int, str], list[dict[Metric, float]]] = defaultdict(list)
    cases: list[tuple[Over, Streams, int]] = [("control", over_control, num) for num in load.num_rows]
    cases += [("http", over_http, num) for num in load.num_http_rows]
    for _ in range(options.num_rounds):
        for ahead in ("off", "on"):
            async with opened(options, open_system, steps_ahead="off" if ahead == "off" else "on") as system:
                await over_control(system, 1, NUM_FEW)  # warm-up
                for over, streams, num_rows in cases:
                    few = await spent(system, streams, num_rows, NUM_FEW)
                    many = await spent(system, streams, num_rows, NUM_FEW + load.num_more)
                    found[over, num_rows, ahead].append(many.less(few).values(num_rows))
    return [row for (over, num_rows, ahead) in found for row in _rows(found, over, num_rows, ahead)]


async def spent(system: System, streams: Streams, num_streams: int, num_tokens: int) -> Spent:
    """What it takes, from the first stream's beginning to the last one's end."""
    before, wall_s, cpu_s, device_s = (
        await system.control.stats(), time.perf_counter(), time.thread_time(), system.device_s
    )  # fmt: skip
    await streams(system, num_streams, num_tokens)
    after_device_s = system.device_s
    return Spent(
        time.perf_counter() - wall_s,
        time.thread_time() - cpu_s,
        None if after_device_s is None or device_s is None else after_device_s - device_s,
        (await system.control.stats()).num_steps - before.num_steps,
    )


async def over_control(system: System, num_streams: int, num_tokens: int) -> None:
    """Programs without a sandbox, in this process."""

    async def one(number: int) -> None:
        with Caller(system.control, f"steps-{number}") as caller:
            await by_streaming(caller, num_tokens)

    await all_of(one(number) for number in range(num_streams))


async def over_http(system: System, num_streams: int, num_tokens: int) -> None:
    """Chat completions, read by another process."""
    body = msgspec.json.encode({
        "model": system.control.models()[0].name,
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "max_tokens": num_tokens,
        "ignore_eos": True,
    })  # fmt: skip
    async with served(system.runs) as port:
        found = await client(port, num_streams, body=body)
    if not num_streams <= found.num_chunks <= num_streams * num_tokens:
        raise InternalError(f"{num_streams} streams of {num_tokens} tokens had {found.num_chunks} chunks")


def _rows(
    found: dict[tuple[Over, int, str], list[dict[Metric, float]]], over: Over, num_rows: int, ahead: str
) -> list[Row]:
    rows: list[Row] = []
    for metric in found[over, num_rows, ahead][0]:
        row = measured(
            _SUITE,
            case_name(over=over, rows=num_rows, ahead=ahead),
            metric,
            [one[metric] for one in found[over, num_rows, ahead]],
        )
        if ahead == "on":
            row = row.against("off", median(one[metric] for one in found[over, num_rows, "off"]))
        rows.append(row)
    return rows
