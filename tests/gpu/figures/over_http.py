"""Section: the time from token to token over HTTP and at the model worker, in the same run of the whole server.

Starts `loopwright serve` with random weights in processes of its own, and clients in others. The model worker's figure
is what its own metrics counted meanwhile.
"""

import asyncio
import json
import os
import re
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from figures import peers
from figures.report import Bench, Section

NUM_OUT, NUM_WORDS = 128, 22  # 22 numbers of five digits are about 128 bytes, which are tokens of the made-up tokenizer
STREAMS_PER_CLIENT = 64
START_S = 240.0
CLIENT = Path(__file__).with_name("http_client.py")
PROCESSES = ((1, 0), (9, 0), (7, 4))  # in all, eight of programs beside server and model; and HTTP in others yet
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Served:
    """A server under way."""

    process: asyncio.subprocess.Process
    port: int
    model: str


@asynccontextmanager
async def serving(bench: Bench, num_processes: int, num_api: int) -> AsyncIterator[Served]:
    """`loopwright serve`, until the end."""
    words = [
        "serve",
        "--device",
        bench.device,
        "--load",
        "dummy",
        "--shape",
        bench.shape,
        "--processes",
        str(num_processes),
    ]
    settings = ["--set", "control.prefix_cache=false", "--port", "0", "--api-workers", str(num_api)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loopwright", *words, *settings, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = b""
    try:
        async with asyncio.timeout(START_S):
            while (found := re.search(rb"loopwright: (\S+) at http://[^ ]*:(\d+)/v1", said)) is None:
                line = await process.stderr.readline()
                if not line:
                    raise RuntimeError(f"the server ended: {said.decode(errors='replace')[-2000:]}")
                said += line
        reading = asyncio.create_task(process.stderr.read())
        yield Served(process, int(found[2]), found[1].decode())
        reading.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()


@dataclass(frozen=True, slots=True)
class Read:
    """One stream as its client read it: when it asked, and when texts came, by the machine's monotonic clock. One read
    may have several tokens."""

    began_s: float
    times_s: list[float]

    @property
    def span_s(self) -> float:
        return self.times_s[-1] - self.times_s[0]


def steady_s(reads: Sequence[Read]) -> float:
    """From token to token while all streams are under way: the median over streams."""
    begun_s, over_s = max(one.times_s[0] for one in reads), min(one.times_s[-1] for one in reads)
    found = []
    for one in reads:
        times_s = [when for when in one.times_s if begun_s <= when <= over_s]
        if len(times_s) > 1:
            gap_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
            found.append(gap_s * (len(one.times_s) - 1) / (NUM_OUT - 1))
    return median(found) if found else 0.0


async def read_streams(served: Served, num_streams: int, num_out: int = NUM_OUT) -> list[Read]:
    """What clients read of so many streams that begin together."""
    shares = [min(STREAMS_PER_CLIENT, num_streams - start) for start in range(0, num_streams, STREAMS_PER_CLIENT)]
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), str(served.port), str(share), str(num_out), str(NUM_WORDS), served.model,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for share in shares
    ]  # fmt: skip
    try:
        for one in clients:
            assert one.stdout is not None
            await one.stdout.readline()
        told = [json.loads(out) for out, _ in await asyncio.gather(*(one.communicate(b"\n") for one in clients))]
    finally:
        for one in clients:
            if one.returncode is None:
                one.kill()
                await one.wait()
    failed = [text for one in told for text in one["failed"]]
    if failed:
        raise RuntimeError(f"{len(failed)} of {num_streams} streams had no token: {failed[0]}")
    return [Read(**stream) for one in told for stream in one["streams"]]


async def over_http(bench: Bench) -> None:
    bench.table(
        "processes + HTTP", "batch", "TPOT ms, HTTP", f"goal / {peers.VLLM}", "TPOT ms, model worker",
        "HTTP, once all have begun", "TTFT p50 ms", "request ms", "CPU ms a step, all processes",
        "tokens/s of a host core", "CPU by process, %",
    )  # fmt: skip
    for num_processes, num_api in PROCESSES:
        if not bench.has_time(20):
            return
        try:
            async with serving(bench, num_processes, num_api) as served:
                await read_streams(served, 256, 8)  # warm-up
                for batch in peers.BATCHES:
                    if bench.has_time(5):
                        await _measure(bench, served, f"{num_processes} + {num_api}", batch)
        except RuntimeError as error:
            bench.say(f"\n{num_processes} + {num_api} processes FAILED: {error}")


async def _measure(bench: Bench, served: Served, processes: str, batch: int) -> None:
    counted, cpu = await _counted(served), cpu_s(served.process.pid)
    reads = await read_streams(served, batch)
    took_s = max(one.times_s[-1] for one in reads) - min(one.began_s for one in reads)
    after_cpu = cpu_s(served.process.pid)
    spent = {pid: (name, after_cpu[pid][1] - cpu.get(pid, ("", 0.0))[1]) for pid, (name, _) in after_cpu.items()}
    loops = [(name, seconds) for pid, (name, seconds) in spent.items() if pid < 0]
    spent = {pid: one for pid, one in spent.items() if pid > 0}
    gaps = {name: value - counted.get(name, 0.0) for name, value in (await _counted(served)).items()}
    all_s = sum(seconds for _, seconds in spent.values())
    tpot_ms = 1e3 * mean(one.span_s for one in reads) / (NUM_OUT - 1)
    worker_ms = 1e3 * gaps["sum"] / max(1.0, gaps["count"])
    bench.found("http", bench.shape, batch, value=tpot_ms)
    request_ms = 1e3 * mean(one.times_s[-1] - one.began_s for one in reads)
    bench.found("request_http", bench.shape, batch, value=request_ms)
    bench.found("worker", bench.shape, batch, value=worker_ms)
    bench.row(
        processes, batch, tpot_ms, peers.beside(bench.shape, batch), worker_ms, 1e3 * steady_s(reads),
        1e3 * median(one.times_s[0] - one.began_s for one in reads), request_ms, 1e3 * all_s / NUM_OUT,
        round(batch * NUM_OUT / max(all_s, 1e-9)),
        ", ".join(f"{name} {100 * seconds / took_s:.0f}" for name, seconds in
                  [*sorted(spent.values(), key=lambda one: -one[1])[:4], *loops]),
    )  # fmt: skip


async def _counted(served: Served) -> dict[str, float]:
    """Sum and count of what the model worker saw between tokens."""
    text = await asyncio.to_thread(_get, f"http://127.0.0.1:{served.port}/metrics")
    found = re.findall(r"inter_token_latency_seconds_(sum|count)\S* (\S+)", text)
    return {name: float(value) for name, value in found}


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]


def cpu_s(parent: int) -> dict[int, tuple[str, float]]:
    """Seconds of CPU of a process and all below it: name and seconds, by number. Also those of the model worker's event
    loop alone, by minus its number: the thread that waits for a device turns round meanwhile."""
    parents, found = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        fields = rest.split()
        pid = int(head.split()[0])
        parents[pid] = int(fields[1])
        name = next((words[place + 1].decode() for place, one in enumerate(words[:-1])
                     if one == b"loopwright.compose.worker"), "server")  # fmt: skip
        found[pid] = (name, (int(fields[11]) + int(fields[12])) / TICKS_PER_S)

    def is_below(pid: int) -> bool:
        while pid not in (0, parent):
            pid = parents.get(pid, 0)
        return pid == parent

    mine = {pid: one for pid, one in found.items() if is_below(pid)}
    loops = {-pid: ("its loop", _thread_s(pid)) for pid, (name, _) in mine.items() if name == "model"}
    return mine | loops


def _thread_s(pid: int) -> float:
    """Of a process's first thread."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


HTTP = Section("http", "Over HTTP, and at the model worker beside", 110, over_http)
