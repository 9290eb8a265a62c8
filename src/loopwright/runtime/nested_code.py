"""Runs pieces of code for a program, each in an instance of the Wasm runner that may ask nothing of its host.

Never executes code outside that sandbox: where there is none, it refuses. A service of the host, one for each run.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec

from loopwright.core.code_calls import RunCode
from loopwright.core.errors import (
    DeadlineExceeded,
    LimitExceeded,
    LoopwrightError,
    Overloaded,
    PermissionDenied,
    Unavailable,
)
from loopwright.runtime.budget import Budget
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandbox import Sandbox

FILENAME = "code.py"
_DEFAULTS = Limits(memory_mb=32, cpu_seconds=5.0, seconds=10.0, max_output_bytes=64 << 10)
_DENIED = PermissionDenied("generated code may ask nothing of its host: no model, no network, no state")


class NestedCode:
    """The code of one run. What runs at once shares the run's own limits: its memory, its CPU time, its children."""

    def __init__(self, sandbox: Sandbox | None, budget: Budget) -> None:
        self._sandbox = sandbox
        self._budget = budget
        self._limits = budget.limits
        self._live: set[Budget] = set()  # one for each piece

    async def run(self, call: RunCode) -> dict[str, Any]:
        """What the call completes with. Raises LimitExceeded for limits beyond what the run has left, Unavailable where
        there is no sandbox, Overloaded where it has no room."""
        if self._sandbox is None:
            raise Unavailable(
                "sandbox.run needs the Wasm sandbox, which this server does not have",
                hint="code that a model wrote is never executed outside it",
            )
        limits = self._limits_of(call)
        self._check(limits)
        self._budget.take_memory(limits.memory_mb)
        piece = Budget(limits, self._budget)
        self._live.add(piece)
        try:
            return await self._execute(self._sandbox, call, piece)
        finally:
            self._live.remove(piece)
            self._budget.give_memory(limits.memory_mb)

    def check_integrity(self) -> None:
        """No piece is left when its program is over."""
        assert not self._live

    def _limits_of(self, call: RunCode) -> Limits:
        left = {
            "memory_mb": self._limits.memory_mb - sum(piece.limits.memory_mb for piece in self._live),
            "cpu_seconds": max(0.0, self._budget.cpu_left_s - sum(piece.cpu_left_s for piece in self._live)),
            "seconds": self._limits.seconds,
            "max_output_bytes": self._limits.max_output_bytes,
        }
        taken: dict[str, Any] = {}
        for name, most in left.items():
            asked = getattr(call, name)
            if asked is not None and asked > most:
                whole = getattr(self._limits, name)
                raise LimitExceeded(
                    f"sandbox.run: {name} is {asked:g}; the program has {most:g} left of its {whole:g}",
                    hint=f"ask for less, or raise {name} in the program's limits",
                    field=name,
                )
            taken[name] = asked if asked is not None else min(getattr(_DEFAULTS, name), most)
        return msgspec.structs.replace(_DEFAULTS, **taken, max_message_bytes=self._limits.max_message_bytes)

    def _check(self, limits: Limits) -> None:
        if limits.memory_mb < 1 or limits.cpu_seconds <= 0:
            name = "memory_mb" if limits.memory_mb < 1 else "cpu_seconds"
            raise LimitExceeded(
                f"sandbox.run: nothing is left of the program's {name}, {getattr(self._limits, name):g}",
                hint=f"raise {name} in the program's limits, or give each piece of code less",
                field=name,
            )
        if len(self._live) >= self._limits.max_children:
            raise LimitExceeded(
                f"sandbox.run: {len(self._live)} pieces of code are running; the limit is {self._limits.max_children}",
                hint="raise max_children in the program's limits, or wait for some",
                field="max_children",
            )

    async def _execute(self, sandbox: Sandbox, call: RunCode, piece: Budget) -> dict[str, Any]:
        limits = piece.limits
        guest = _Denier(limits.max_output_bytes)
        running = sandbox.run(call.code, FILENAME, json.dumps(call.inputs), guest, limits, piece, "snippet")
        try:
            result = await _in_time(running, limits)
            return {"result": msgspec.Raw(result.encode()), "stdout": guest.output(), "error": None}
        except (Overloaded, Unavailable):
            raise  # not the code's doing
        except LoopwrightError as error:
            return {"result": None, "stdout": guest.output(), "error": msgspec.structs.asdict(error.info())}


async def _in_time(running: Any, limits: Limits) -> str:  # noqa: ANN401 (a coroutine)
    deadline = asyncio.timeout(limits.seconds)
    try:
        async with deadline:
            result: str = await running
            return result
    except TimeoutError:
        if not deadline.expired():
            raise
        raise DeadlineExceeded(
            f"the code took longer than its {limits.seconds:g} s", hint="give it more seconds", field="seconds"
        ) from None


class _Denier:
    """The host of a piece of code: takes what it prints, and answers every call with a refusal."""

    def __init__(self, max_output_bytes: int) -> None:
        self._lines: list[str] = []
        self._num_bytes_left = max_output_bytes
        self._num_bytes_cut = 0
        self._num_calls = 0
        self._ready: list[str] = []
        self._wake: Callable[[], None] | None = None

    def submit(self, op: str) -> int:
        self._num_calls += 1
        if len(self._ready) < 1000:  # who never takes the answers needs no more of them
            self._ready.append(f'[{self._num_calls},"error",{msgspec.json.encode(_DENIED.info()).decode()}]')
        if self._wake is not None:
            self._wake()
        return self._num_calls

    def log(self, stream: str, line: str) -> None:
        data = (line + "\n").encode(errors="replace")
        kept = data[: self._num_bytes_left]
        self._num_bytes_left -= len(kept)
        self._num_bytes_cut += len(data) - len(kept)
        if kept:
            self._lines.append(kept.decode(errors="ignore"))

    def take_events(self) -> str:
        taken, self._ready = self._ready, []
        return f"[{','.join(taken)}]" if taken else ""

    def set_waker(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        if wake is not None and self._ready:
            wake()

    def output(self) -> str:
        note = f"\n[{self._num_bytes_cut} more bytes were cut]\n" if self._num_bytes_cut else ""
        return "".join(self._lines) + note
