"""What the sections of the speed report share: what a section is, how long it may take, and where its lines go.

Never measures. A section is a name, a budget and a coroutine; `speed.py` lists them all, and runs those of one model in
a process of their own, so that one that fails or hangs takes nothing from the others.
"""

import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwright.control.controller import Controller


@dataclass(slots=True)
class Bench:
    """What a section gets, and what it says."""

    shape: str  # of the random weights, as engine.shape; "" for a section without one
    device: str  # "cuda", or "cpu" to try a section without a GPU
    seed: int
    ends_s: float = float("inf")  # by time.monotonic: when the section's time is over
    lines: list[str] = field(default_factory=list)
    system: "System | None" = None  # for a section that shares one
    found_at: Path | None = None  # where figures go that the goals and the picture are made of, a line of JSON each
    prefix: str = ""  # of their names

    def say(self, line: str = "") -> None:
        """Prints a line of the report, which is markdown."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        self.lines.append(line)

    def table(self, *heads: str) -> None:
        """The head of a table; `row` follows."""
        self.say()
        self.row(*heads)
        self.row(*("---" for _ in heads))

    def row(self, *cells: object) -> None:
        self.say("| " + " | ".join(f"{one:.2f}" if isinstance(one, float) else str(one) for one in cells) + " |")

    def found(self, *name: object, value: float) -> None:
        """A figure that `goals` knows by its name, whose parts are given. It stays, whatever becomes of the section."""
        if self.found_at is not None:
            with self.found_at.open("a") as file:
                file.write(json.dumps(["/".join(map(str, (*filter(None, [self.prefix]), *name))), value]) + "\n")

    def has_time(self, needed_s: float) -> bool:
        """Whether the section may begin something that takes so long. Says so if it may not."""
        left_s = self.ends_s - time.monotonic()
        if needed_s <= left_s:
            return True
        self.say(f"(left out: {left_s:.0f} s are left of the budget, and it takes about {needed_s:.0f})")
        return False


@dataclass(frozen=True, slots=True)
class System:
    """Control over random weights, in this process, shared by the sections of a shape."""

    controller: Controller
    weight_bytes: int  # that a step reads


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report. With `shares_system` it finds its model's open in `Bench.system`. `budget_s` is for each
    model; what is over it is cut off."""

    name: str
    title: str
    budget_s: float
    measure: Callable[[Bench], Awaitable[Any]]
    shares_system: bool = False
    num_gpus: int = 1


def percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of the sorted ones; the nearest rank, so that it is one of them. NaN of none."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked) - 1e-9) - 1)] if ranked else float("nan")
