"""Two hundred streams at once for as long as told, of clients that read, that go, and that stop reading.

`make load` runs it; a short one is among the tests. The engine is scripted, so that every text is known. Before it come
two measurements of what the server adds: from the end of an engine's step until a client, a process of its own, has
read the token that the step made.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from load_client import CONTENT, request

from loopwright.control.config import ControlConfig
from loopwright.core.batch import Batch, StepResult
from loopwright.core.executor import EngineShape
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.server.app import create_app
from loopwright.server.http import serve
from system_rig import System, byte_text, system_over, until

NUM_STREAMS = 200
NUM_BLOCKS = 8192
GO_SHARE, STALL_SHARE = 0.2, 0.08  # of clients
STALL_S = 0.5
LOADED_STALL_S = 1.0  # where many clients and the server share a loop that others may hold up
SETTLE_S = 60.0
LETTERS = [*range(97, 123), *range(65, 91)]
CLIENT = Path(__file__).with_name("load_client.py")


def letter(history: tuple[int, ...]) -> int:
    """A token that depends on where it stands."""
    return LETTERS[len(history) % len(LETTERS)]


def text_after(num_prompt: int, num_tokens: int) -> bytes:
    return bytes(LETTERS[(num_prompt + place) % len(LETTERS)] for place in range(num_tokens))


class SteppingExecutor:
    """A scripted executor that keeps no batches. When `tells_step`, a token says which step made it, and `ended_ns`
    when that step was over."""

    def __init__(self, *, tells_step: bool = False) -> None:
        self.ended_ns: list[int] = []
        self._num_steps = 0
        self._inner = ScriptedExecutor(self._of_step if tells_step else letter, num_blocks=NUM_BLOCKS)

    @property
    def shape(self) -> EngineShape:
        return self._inner.shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        self._inner.batches.clear()
        future = self._inner.submit(batch)
        future.add_done_callback(lambda _: self._end_step())
        return future

    def close(self) -> None:
        self._inner.close()

    def _of_step(self, history: tuple[int, ...]) -> int:
        return LETTERS[len(self.ended_ns) % len(LETTERS)]

    def _end_step(self) -> None:
        self.ended_ns.append(time.monotonic_ns())


@dataclass
class Report:
    """What came of it."""

    ended: Counter[str] = field(default_factory=Counter)  # clients, by how they ended
    num_chunks: int = 0
    wrong: list[str] = field(default_factory=list)
    added_ms: dict[int, list[float]] = field(default_factory=dict)  # by the number of streams

    def __str__(self) -> str:
        lines = [f"{self.ended.total()} clients: {dict(sorted(self.ended.items()))}; {self.num_chunks} chunks"]
        for num_streams, found in self.added_ms.items():
            cuts = quantiles(found, n=100)
            told = f"p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms of {len(found)} chunks"
            lines.append(f"added at {num_streams} streams: {told}")
        return "\n".join(lines)


@asynccontextmanager
async def served(executor: SteppingExecutor, stall_s: float = STALL_S) -> AsyncIterator[tuple[System, int]]:
    """A whole system over the executor, and the port that it is served at."""
    control = ControlConfig(max_batch_rows=512, max_batch_tokens=4096)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    try:
        async with system_over(executor, byte_text(executor), control=control) as system:  # type: ignore[arg-type]
            app = create_app(system.launcher)
            serving = asyncio.create_task(serve(app, "127.0.0.1", 0, port.set_result, stall_s=stall_s))
            try:
                yield system, await port
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
    finally:
        executor.close()


def endless(prompt: str) -> bytes:
    """A request whose answer is more than all buffers between the two ends hold."""
    return request(prompt, 3900, logprobs=True, top_logprobs=20)


class Clients:
    """Keeps so many streams open until its time is over."""

    def __init__(self, port: int, rng: random.Random, report: Report) -> None:
        self._port, self._rng, self._report = port, rng, report

    async def run(self, num_streams: int, seconds: float, on_progress: Callable[[float], None]) -> None:
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as slots:
            for _ in range(num_streams):
                slots.create_task(self._slot(started_s + seconds))
            while (gone_s := time.monotonic() - started_s) < seconds:
                on_progress(gone_s / seconds)
                await asyncio.sleep(min(1.0, seconds - gone_s))

    async def _slot(self, until_s: float) -> None:
        """One client after another; at least one."""
        while True:
            await self._client()
            if time.monotonic() >= until_s:
                return

    async def _client(self) -> None:
        drawn, num_tokens = self._rng.random(), self._rng.randint(1, 120)
        prompt = "x" * self._rng.randint(1, 60)
        is_stalling = drawn < STALL_SHARE
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 14)
        try:
            if is_stalling:
                writer.write(endless(prompt))
                await asyncio.sleep(self._rng.random() * 2 * LOADED_STALL_S)
                self._report.ended["stopped reading"] += 1
                return
            writer.write(request(prompt, num_tokens))
            if drawn < STALL_SHARE + GO_SHARE:
                await reader.read(self._rng.randint(1, 8000))
                self._report.ended["went"] += 1
            else:
                self._check(await reader.read(), prompt, num_tokens)
        finally:
            writer.transport.abort()

    def _check(self, told: bytes, prompt: str, num_tokens: int) -> None:
        num_prompt = len(prompt) + len("^<user\n>\n<assistant\n")
        parts = CONTENT.findall(told)
        self._report.num_chunks += len(parts)
        if b"".join(parts) == text_after(num_prompt, num_tokens) and b"data: [DONE]\n\n" in told:
            self._report.ended["read all"] += 1
        else:
            self._report.wrong.append(f"{prompt!r}, {num_tokens} tokens: {told[-2000:]!r}")


def no_progress(share: float) -> None: ...


async def load(
    *,
    seed: int,
    seconds: float,
    num_streams: int,
    on_progress: Callable[[float], None] = no_progress,
    settle_s: float = SETTLE_S,
) -> Report:
    """Raises AssertionError for a leaked task, socket, file or page, if it is still there `settle_s` later."""
    report = Report()
    async with served(SteppingExecutor(), LOADED_STALL_S) as (system, port):
        await Clients(port, random.Random(seed), report).run(1, 0.0, on_progress)  # what is made once is made by now
        gc.collect()  # what earlier work let go of would make room for a leak
        before = held_now()
        await Clients(port, random.Random(seed), report).run(num_streams, seconds, on_progress)
        try:
            await until(lambda: all(held_now()[what] <= num for what, num in before.items()), settle_s)
        except TimeoutError:
            raise AssertionError(f"leaked: {held_now()}, and before the load {before}") from None
        stats = await system.controller.stats()
        assert (stats.num_live_runs, stats.num_waiting_calls) == (0, 0), stats
        system.controller.check_integrity()
    return report  # leaving the system has asked for its pages


async def measure_added(num_streams: int, num_tokens: int) -> list[float]:
    """How long each token was under way, in ms, from the end of its step to a client in another process."""
    executor = SteppingExecutor(tells_step=True)
    async with served(executor) as (_, port):
        words = [sys.executable, CLIENT, str(port), str(num_streams), str(num_tokens)]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        told, _ = await process.communicate()
        assert process.returncode == 0
    arrived = [(at_ns, one) for at_ns, text in json.loads(told) for one in text]
    return [(at_ns - step_before(executor.ended_ns, at_ns, one)) / 1e6 for at_ns, one in arrived]


def step_before(ended_ns: list[int], at_ns: int, one: str) -> int:
    """When the last step that says `one` and was over by then ended."""
    place = max(index for index, end_ns in enumerate(ended_ns) if end_ns <= at_ns)
    while LETTERS[place % len(LETTERS)] != ord(one):
        place -= 1
    return ended_ns[place]


def held_now() -> dict[str, int]:
    """What this process holds that a client which went could leave behind. Counting takes one file, for a moment."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    num_sockets = sum(one.startswith("socket:") for one in links)
    return {"tasks": len(asyncio.all_tasks()), "sockets": num_sockets, "other files": len(links) - num_sockets}


async def main(arguments: argparse.Namespace) -> int:
    console = Console()
    added = {num: await measure_added(num, 400) for num in (1, arguments.streams)}
    with Progress(TextColumn("load"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("load", total=1.0)
        report = await load(
            seed=arguments.seed,
            seconds=arguments.minutes * 60,
            num_streams=arguments.streams,
            on_progress=lambda share: progress.update(bar, completed=share),
        )
    report.added_ms = added
    console.print(str(report), *(f"wrong: {one}" for one in report.wrong[:3]), sep="\n", markup=False)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--streams", type=int, default=NUM_STREAMS)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(asyncio.run(main(parser.parse_args())))
