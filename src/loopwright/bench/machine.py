"""Says which machine a measurement was made on, and how fast it reads memory. Never measures the system itself.

Called by the table and by the suites that have a bandwidth floor.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loopwright.core.clock import Clock

_MIN_READ_BYTES = 256 << 20
_MAX_READ_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader has to know to place a number."""

    cpu: str
    num_cores: int
    memory_bytes: int
    system: str
    python: str

    def __str__(self) -> str:
        memory_gib = self.memory_bytes / (1 << 30)
        return f"{self.cpu}, {self.num_cores} cores, {memory_gib:.0f} GiB, {self.system}, Python {self.python}"


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


def read_bandwidth(clock: Clock, num_threads: int, num_repeats: int = 5) -> float:
    """Bytes a second that `num_threads` threads read from memory together: the best of `num_repeats` passes of `max`
    (numpy's fastest reading reduction) over an array of at least twice the last-level cache."""
    values = np.ones(_read_bytes() // 4, dtype=np.float32)  # written once, so every page is real memory
    parts = np.array_split(values, num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        return values.nbytes / min(_pass_s(clock, pool, parts) for _ in range(num_repeats))


def _pass_s(clock: Clock, pool: ThreadPoolExecutor, parts: list[np.ndarray]) -> float:
    started_s = clock.now_s()
    for _ in pool.map(np.max, parts):
        pass
    return clock.now_s() - started_s


def _read_bytes() -> int:
    return min(max(2 * _last_level_cache_bytes(), _MIN_READ_BYTES), _MAX_READ_BYTES)


def _last_level_cache_bytes() -> int:
    """0 where the system does not say."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((_size_bytes(path.read_text().strip()) for path in sizes), default=0)


def _size_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text or 0)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown CPU")
