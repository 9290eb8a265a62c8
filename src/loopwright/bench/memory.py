"""How much memory a server holds: when it is ready, and after many streams at once. Never in this process.

It starts the real command as a user would, with one process, asks it over HTTP, and reads what Linux says of it. Run by
`command`. Cases: `at=ready`, `at=streams` (32 of 256 tokens, all at once; aim: 800 MB) and `at=peak`, each with
`part=all`; of the first two also `part=own` (weights, KV and heaps), `part=runner` (the sandbox's snapshot, whose pages
count as resident once for each instance that waits) and `part=libraries`. `part=all` also has what each page is worth,
divided by how often it is mapped. `floor=weights` and `floor=kv` are what the model and the tokens of the streams take.
"""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpcore
import msgspec

from loopwright.bench.rows import Metric, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite
from loopwright.bench.together import all_of
from loopwright.core.errors import InternalError, Unavailable

RESIDENT_MB = Metric("resident_mb", "MB", lower_is_better=True)
PROPORTIONAL_MB = Metric("proportional_mb", "MB", lower_is_better=True)

NUM_STREAMS = 32
NUM_TOKENS = 256
TIMEOUT_S = 600.0
_LINES = 3  # of what the command said last, when it fails

_SUITE = "memory"
_READY = re.compile(r"loopwright: (.+) at (http://\S+)/v1 ")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)")


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds, in bytes."""

    parts: Mapping[str, int]  # resident, by part
    proportional: int
    peak: int

    @property
    def resident(self) -> int:
        return sum(self.parts.values())


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    """`open_system` says what weights and a token's KV take; what is measured is a server of its own."""
    async with open_system(options.model) as system:
        weight_bytes, token_bytes = system.step_weight_bytes, system.kv_token_bytes
    found: dict[str, list[Held]] = {"ready": [], "streams": []}
    num_tokens: list[int] = []
    for _ in range(options.num_rounds):
        async with _server(options.model) as (process, name, url):
            found["ready"].append(held_by(process.pid))
            num_tokens.append(await _stream_all(url, name))
            found["streams"].append(held_by(process.pid))
    rows = [row for at, all_held in found.items() for row in _rows(at, all_held)]
    peaks = [_mb(one.peak) for one in found["streams"]]
    rows.append(measured(_SUITE, case_name(at="peak", part="all"), RESIDENT_MB, peaks))
    rows.append(measured(_SUITE, case_name(floor="weights"), RESIDENT_MB, [_mb(weight_bytes)]))
    kv_mb = [_mb(num * token_bytes) for num in num_tokens]
    rows.append(measured(_SUITE, case_name(floor="kv", streams=NUM_STREAMS, tokens=NUM_TOKENS), RESIDENT_MB, kv_mb))
    return Measured(rows=tuple(rows), workload={})


SUITE = Suite(name=_SUITE, title="bench memory: what a server of one process holds", measure=measure)


def _rows(at: str, all_held: list[Held]) -> list[Row]:
    whole = case_name(at=at, part="all")
    rows = [
        measured(_SUITE, whole, RESIDENT_MB, [_mb(one.resident) for one in all_held]),
        measured(_SUITE, whole, PROPORTIONAL_MB, [_mb(one.proportional) for one in all_held]),
    ]
    for part in all_held[0].parts:
        values = [_mb(one.parts[part]) for one in all_held]
        rows.append(measured(_SUITE, case_name(at=at, part=part), RESIDENT_MB, values))
    return rows


def held_by(pid: int) -> Held:
    """Raises Unavailable where the system does not say it."""
    folder = Path("/proc", str(pid))
    try:
        parts, proportional = sum_up((folder / "smaps").read_text())
        peak = re.search(r"^VmHWM:\s+(\d+) kB", (folder / "status").read_text(), re.MULTILINE)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be read", hint="memory is measured on Linux") from error
    assert peak, "status has no VmHWM"
    return Held(parts, proportional, int(peak[1]) << 10)


def sum_up(smaps: str) -> tuple[Mapping[str, int], int]:
    """Resident bytes by part, and proportional bytes in all."""
    parts, proportional, part = Counter({"own": 0, "runner": 0, "libraries": 0}), 0, "own"
    for line in smaps.splitlines():
        if mapping := _MAPPING.fullmatch(line):
            name = mapping[1]
            part = "runner" if name.endswith(".cwasm") else "libraries" if name.startswith("/") else "own"
        elif line.startswith("Rss:"):
            parts[part] += int(line.split()[1]) << 10
        elif line.startswith("Pss:"):
            proportional += int(line.split()[1]) << 10
    return parts, proportional


@asynccontextmanager
async def _server(model: str) -> AsyncIterator[tuple[Process, str, str]]:
    """A server that is ready: its process, the name of its model and its URL."""
    words = ("-m", "loopwright", "serve", "--model", model, "--processes", "1", "--port", "0")
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=PIPE)
    try:
        name, url = await _ready(process)
        yield process, name, url
    finally:
        process.kill()
        await process.wait()


async def _ready(process: Process) -> tuple[str, str]:
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        while line := (await process.stderr.readline()).decode(errors="replace"):
            if found := _READY.search(line):
                return found[1], found[2]
            lines = [*lines, line.rstrip()][-_LINES:]
    raise InternalError(f"loopwright serve ended; its last lines: {' | '.join(lines) or 'none'}")


async def _stream_all(url: str, name: str) -> int:
    """How many tokens the streams had, prompts too."""
    async with httpcore.AsyncConnectionPool(max_connections=NUM_STREAMS) as pool:
        return sum(await all_of(_stream(pool, url, name, number) for number in range(NUM_STREAMS)))


async def _stream(pool: httpcore.AsyncConnectionPool, url: str, name: str, number: int) -> int:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": f"Tell story number {number}."}],
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = [("content-type", "application/json")]
    path, timeouts = f"{url}/v1/chat/completions", {"timeout": {"read": TIMEOUT_S}}
    content, last = msgspec.json.encode(body), b""
    async with pool.stream("POST", path, headers=headers, content=content, extensions=timeouts) as response:
        if response.status != 200:
            raise Unavailable(f"a chat was answered with {response.status}: {(await response.aread()).decode()}")
        async for part in response.aiter_stream():
            last = (last + part)[-4096:]
    found = re.search(rb'"total_tokens": ?(\d+)', last)
    if not found:
        raise InternalError("a stream ended without its usage")
    return int(found[1])


def _mb(num_bytes: int) -> float:
    return num_bytes / 1e6
