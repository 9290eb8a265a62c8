"""The Wasm sandbox: every program is a fiber on the event loop's thread, interrupted by ticks when it computes.

Never looks into calls. Opened by `open_wasm_sandbox`, which falls back to `reentrant` where fibers cannot run.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Literal, TypeAlias

from wasmtime import Engine, WasmtimeError

from loopwright.core.errors import Overloaded, ProgramError, Unavailable
from loopwright.runtime.budget import Budget
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandbox import Form, Guest
from loopwright.runtime.sandboxes import fiber_check
from loopwright.runtime.sandboxes.code_cache import CodeCache
from loopwright.runtime.sandboxes.fibers import Fiber, FiberHost, ParkedInstance
from loopwright.runtime.sandboxes.instance_pool import InstancePool
from loopwright.runtime.sandboxes.outcome import checked_result, error_from_guest
from loopwright.runtime.sandboxes.private_files import FileFolders
from loopwright.runtime.sandboxes.reentrant import ReentrantSandbox
from loopwright.runtime.sandboxes.runner_build import RunnerFiles
from loopwright.runtime.sandboxes.waiting import next_events
from loopwright.runtime.sandboxes.wasm_engine import load_compiled, new_engine, trap_message

Backend: TypeAlias = Literal["auto", "fiber", "reentrant"]

TICK_S = 0.010
"""How long a program may compute before others get their turn."""

MIN_SLICE_S = 0.002
"""A shorter slice was cut by a tick that passed while the program waited; it goes on at once."""

MAX_PARKED = 32
"""Of instances that have rehearsed; of those that have not, which are small, twice as many."""

REHEARSAL = "rehearsal"
"""The form under which the runner plays a program of its own: the pages that runs write to are the instance's then."""

_log = logging.getLogger(__name__)


def open_wasm_sandbox(files: RunnerFiles, backend: Backend = "auto") -> "WasmSandbox | ReentrantSandbox":
    """The sandbox with the back-end of that name; "auto" takes fibers where they can run. Raises Unavailable."""
    reason = None if backend == "reentrant" else fiber_check.why_not(new_engine())
    if backend == "fiber" and reason is not None:
        raise Unavailable(f"the fiber back-end cannot run: {reason}", hint='set sandbox.backend = "reentrant"')
    if backend == "fiber" or (backend == "auto" and reason is None):
        return WasmSandbox(files.compiled)
    _log.info("Wasm back-end: reentrant (%s)", reason or "as asked")
    return ReentrantSandbox(files.compiled)


class WasmSandbox:
    """Runs programs in Wasm instances, each suspended while it waits. All methods on the event loop's thread."""

    name = "wasm"
    is_paced = True
    backend = "fiber"

    def __init__(self, compiled: Path, max_parked: int = MAX_PARKED) -> None:
        engine = new_engine()
        self._host = FiberHost(engine, load_compiled(engine, compiled))
        self._num_live = 0
        self._pool = InstancePool(self._host.instantiate, self._warm, max_parked, lambda: self._num_live == 0)
        self._codes = CodeCache()
        self._ticker = _Ticker(engine)
        self._folders = FileFolders()

    async def run(
        self,
        source: str,
        filename: str,
        arguments: str,
        guest: Guest,
        limits: Limits,
        budget: Budget | None = None,
        form: Form = "program",
    ) -> str:
        """As `Sandbox.run`. Raises Overloaded when the machine has no room for another instance."""
        code, keep = self._codes.find(form, source, filename)
        texts = (form, source, filename, arguments, code)
        parked = self._take(limits, form)
        fiber = self._host.start(parked, guest, texts, None if code else keep)
        self._num_live += 1
        try:
            await _drive(fiber, budget or Budget(limits))
            return _result(fiber, limits)
        finally:
            self._num_live -= 1
            self._pool.discard(fiber.drop())

    async def close(self) -> None:
        """Ends the threads and frees the instances. No run may be live."""
        self._ticker.stop()
        self._pool.close()
        self._host.close()
        self._folders.close()

    @property
    def num_live(self) -> int:
        """Programs that are running or suspended."""
        return self._num_live

    @property
    def num_rehearsed(self) -> int:
        """Instances that wait with the pages of a usual run written."""
        return self._pool.num_warmed

    def check_integrity(self) -> None:
        """Asserts what always holds of the fibers and of the pool of instances."""
        self._host.check_integrity()
        self._pool.check_integrity()
        self._codes.check_integrity()

    def _warm(self, instance: ParkedInstance) -> ParkedInstance:
        """The instance, after a rehearsal. Safe on any thread."""
        fiber = self._host.start(instance, _Nobody(), (REHEARSAL, "", "", "", ""))
        while not fiber.poll():
            if fiber.waits_ms is not None:
                fiber.answer("")
        fiber.outcome()
        return fiber.drop()

    def _take(self, limits: Limits, form: Form) -> ParkedInstance:
        """A rehearsed one for a program. What a rehearsal does is of no use to a snippet, which makes no calls."""
        files = self._folders.new(limits.max_file_bytes) if limits.max_file_bytes else None
        try:
            is_program = form == "program"
            parked = self._pool.take(warm=is_program) if files is None else self._host.instantiate(files=files)
        except WasmtimeError as error:
            if files is not None:
                files.remove()
            reason = str(error).splitlines()[0]
            raise Overloaded(f"no room for a program beside {self._num_live} others: {reason}") from error
        parked.store.set_limits(memory_size=self._host.runner_memory + (limits.memory_mb << 20))
        return parked


async def _drive(fiber: Fiber, budget: Budget) -> None:
    """Polls the fiber until it has returned. Raises LimitExceeded when it has computed too long.

    A guest that a tick interrupts after it has made calls may be in the middle of a chain, which should be one step: it
    goes on once more, to the next tick that does not come right away, before others get their turn."""
    has_gone_on = False
    while True:
        started_s = time.thread_time()
        has_returned = fiber.poll()
        slice_s = time.thread_time() - started_s
        budget.charge_cpu(slice_s)
        if has_returned:
            return
        if fiber.files is not None:
            fiber.files.check_when_due()
        if fiber.waits_ms is not None:
            timeout_s = None if fiber.waits_ms < 0 else fiber.waits_ms / 1000
            fiber.has_submitted = has_gone_on = False
            fiber.answer(await next_events(fiber.guest, timeout_s, fiber.files))
        elif slice_s <= MIN_SLICE_S:
            continue
        elif fiber.has_submitted and not has_gone_on:
            has_gone_on = True
        else:
            fiber.has_submitted = has_gone_on = False
            await asyncio.sleep(0)


def _result(fiber: Fiber, limits: Limits) -> str:
    try:
        has_succeeded, text = fiber.outcome()
    except WasmtimeError as trap:
        raise ProgramError(trap_message(trap)) from None
    if has_succeeded:
        return checked_result(text, limits)
    raise error_from_guest(text, limits)


class _Nobody:
    """The guest's host during a rehearsal, which makes up the answers itself."""

    def submit(self, op: str) -> int:
        return 0

    def log(self, stream: str, line: str) -> None: ...

    def take_events(self) -> str:
        return ""

    def set_waker(self, wake: Callable[[], None] | None) -> None: ...


class _Ticker:
    """Advances the engine's epoch, at which running guests give way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_over = Event()
        self._thread = Thread(target=self._tick, name="loopwright-ticks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._is_over.wait(TICK_S):
            self._engine.increment_epoch()
