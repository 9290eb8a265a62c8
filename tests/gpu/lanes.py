"""Runs jobs side by side, a lane for each GPU: a job is a process, which sees that GPU and its lane's cores alone.

A lane takes the next job whenever its last one has ended, so the most important ones run first. What a job started ends
with it. Never knows what a job measures. Called by `speed`.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

HUNG_S = 20.0  # what a process may take after its time
NUM_LAST_LINES = 12  # of what a process that failed said on stderr


@dataclass(frozen=True, slots=True)
class Job:
    """Sections of one process. `start_s` is what it takes until it measures."""

    shape: str
    names: tuple[str, ...]
    budget_s: float
    num_gpus: int = 1
    start_s: float = 15.0

    def __str__(self) -> str:
        return f"{', '.join(self.names)} of {self.shape or 'this machine'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job said, and how it ended; `why_not` if it never began."""

    lines: list[str] = field(default_factory=list)
    status: int = 0
    took_s: float = 0.0
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where jobs run: what they find in their environment, and on which cores; none is all."""

    environment: dict[str, str]
    cores: frozenset[int] = frozenset()


Words = Callable[[Job, float], Sequence[str]]
"""The command of a job that has so many seconds."""


def make_lanes(num_lanes: int, device: str) -> list[Lane]:
    """With several, each has its GPU and its share of the cores, and no library takes more than two threads for itself:
    none may spoil what another one measures of its host."""
    if num_lanes == 1:
        return [Lane({})]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // num_lanes
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    visible = visible or [str(one) for one in range(num_lanes)]
    return [
        Lane(
            {"OMP_NUM_THREADS": "2", **({"CUDA_VISIBLE_DEVICES": visible[one]} if device == "cuda" else {})},
            frozenset(cores[one * each : (one + 1) * each]),
        )
        for one in range(num_lanes)
    ]


def run_lanes(
    jobs: Sequence[Job], lanes: Sequence[Lane], ends_s: float, words: Words, done: Callable[[Job, Outcome], None]
) -> None:
    """Runs all jobs that there is time for until `ends_s`, by time.monotonic. `done` hears of each, one at a time."""
    waiting, lock, running = list(jobs), threading.Lock(), set[subprocess.Popen[str]]()

    def follow(lane: Lane) -> None:
        if lane.cores:
            os.sched_setaffinity(0, lane.cores)  # of this thread, and of what it starts
        while True:
            with lock:
                if not waiting:
                    return
                job = waiting.pop(0)
            outcome = run_job(job, lane, ends_s, words, running)
            with lock:
                done(job, outcome)

    with ended_by_signal(), ThreadPoolExecutor(len(lanes)) as pool:
        following = [pool.submit(follow, lane) for lane in lanes]
        try:
            for one in following:
                one.result()
        finally:  # `done` hears of what those had said that are ended here
            waiting.clear()
            for process in list(running):
                _end(process)


def run_job(job: Job, lane: Lane, ends_s: float, words: Words, running: set[subprocess.Popen[str]]) -> Outcome:
    left_s = ends_s - time.monotonic()
    if left_s < job.start_s / 2:
        return Outcome(why_not=f"{max(0.0, left_s):.0f} s were left")
    budget_s, began_s = min(left_s, job.start_s + job.budget_s), time.monotonic()
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            words(job, budget_s), env=os.environ | lane.environment, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
        running.add(process)
        timer = threading.Timer(budget_s + HUNG_S, _end, [process])
        timer.start()
        try:
            assert process.stdout is not None
            lines += (line.rstrip("\n") for line in process.stdout)
            status = process.wait()
        finally:
            timer.cancel()
            _end(process)
            running.discard(process)
        if status:
            errors.seek(0)
            last = errors.read().splitlines()[-NUM_LAST_LINES:]
            lines += [f"FAILED: {job}: the process ended with {status}", "```", *last, "```"]
    return Outcome(lines, status, time.monotonic() - began_s)


def _end(process: subprocess.Popen[str]) -> None:
    """And all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """A polite end from outside is an exception meanwhile, so that nothing stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
