"""What the HTTP side costs: chunks a second of one process, and how long a text is under way to its client.

Run by `command`. The client is a process of its own; the runs behind the server only talk, so nothing of a model is in
it. Cases: `case=chunks/streams=200`, chunks as fast as they go (aim: 10,000 a second), with this process's CPU time for
each; `case=floor/streams=200`, as many bytes from a bare loop that writes them to sockets; `case=delay/streams=N`, from
the moment a run writes a text until its client has read it, at 20 texts a second in every stream, all at once as from
one batch (aim: 1 ms at one stream).
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from loopwright.bench.rows import CPU_US, P50_MS, P99_MS, Metric, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.talking import TalkingRuns
from loopwright.core.errors import Unavailable
from loopwright.core.runs import Runs
from loopwright.server.app import create_app
from loopwright.server.http import serve

CHUNKS_PER_S = Metric("chunks_per_s", "chunks/s", lower_is_better=False)

NUM_STREAMS = 200
NUM_TEXTS = 300
STEP_S = 0.05
NUM_FRAME_BYTES = 190  # of a chunk, beside what the floor writes
NUM_TIMED_TEXTS = 60

_SUITE = "serving"


@dataclass(frozen=True, slots=True)
class Load:
    """How much a measurement is."""

    num_streams: int = NUM_STREAMS
    num_texts: int = NUM_TEXTS
    num_timed_texts: int = NUM_TIMED_TEXTS


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    return Measured(rows=tuple(await measure_serving(options.num_rounds)), workload={})


SUITE = Suite(name=_SUITE, title="bench serving: the HTTP side, no model behind it", measure=measure)


async def measure_serving(num_rounds: int, load: Load = Load()) -> list[Row]:
    """Rows of all cases; each value is the median over the rounds, which take turns."""
    rates: list[float] = []
    floors: list[float] = []
    cpus_us: list[float] = []
    delays: dict[int, list[list[float]]] = {1: [], load.num_streams: []}
    for _ in range(num_rounds):
        rate, cpu_us = await chunks_per_s(load)
        rates.append(rate)
        cpus_us.append(cpu_us)
        floors.append(await floor_per_s(load))
        for num_streams, found in delays.items():
            found.append(await delays_ms(num_streams, load.num_timed_texts))
    many = {"streams": load.num_streams}
    rows = [
        measured(_SUITE, case_name(case="chunks", **many), CHUNKS_PER_S, rates),
        measured(_SUITE, case_name(case="chunks", **many), CPU_US, cpus_us),
        measured(_SUITE, case_name(case="floor", **many), CHUNKS_PER_S, floors),
    ]
    for num_streams, found in delays.items():
        case = case_name(case="delay", streams=num_streams)
        percentiles = [quantiles(one, n=100) for one in found]
        rows.append(measured(_SUITE, case, P50_MS, [one[49] for one in percentiles]))
        rows.append(measured(_SUITE, case, P99_MS, [one[98] for one in percentiles]))
    return rows


async def chunks_per_s(load: Load) -> tuple[float, float]:
    """The rate, and the CPU time of this process's loop for a chunk, in µs."""
    async with served(TalkingRuns(load.num_texts)) as port:
        before_s = time.thread_time()
        found = await client(port, load.num_streams, is_timed=False)
        cpu_s = time.thread_time() - before_s
    return found.num_chunks / found.seconds, cpu_s / found.num_chunks * 1e6


async def delays_ms(num_streams: int, num_texts: int) -> list[float]:
    """How long each text was under way."""
    async with served(TalkingRuns(num_texts, STEP_S)) as port:
        return (await client(port, num_streams, is_timed=True)).delays_ms


async def floor_per_s(load: Load) -> float:
    """The rate of a server that does nothing but write chunks of the same size."""
    data = b'data: {"choices":[{"delta":{"content":" token"' + b" " * NUM_FRAME_BYTES + b"\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(data), data)

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        for _ in range(load.num_texts):
            writer.write(chunk)
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(write, "127.0.0.1", 0, backlog=1024)
    async with server:
        found = await client(server.sockets[0].getsockname()[1], load.num_streams, is_timed=False)
    return found.num_chunks / found.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """What the client says."""

    num_chunks: int
    seconds: float
    delays_ms: list[float]


async def client(port: int, num_streams: int, *, is_timed: bool = False, body: bytes | None = None) -> Found:
    """What another process reads of so many streams; `body` is what each asks for."""
    words = [sys.executable, "-m", "loopwright.bench.stream_client", str(port), str(num_streams), str(int(is_timed))]
    words += [] if body is None else [body.decode()]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Unavailable(f"the client of the serving suite ended with {process.returncode}")
    return Found(**json.loads(told))


@asynccontextmanager
async def served(runs: Runs) -> AsyncIterator[int]:
    """The real server over these runs: its port."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(create_app(runs), "127.0.0.1", 0, port.set_result))
    either: list[asyncio.Future[Any]] = [serving, port]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    try:
        yield port.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
