"""The Wasm sandbox through wasmtime's public interface alone, for where fibers cannot run.

A guest cannot be suspended here: it returns whenever it waits, and is entered again with events. Each turn runs on a
thread, and each run has an engine of its own, whose epoch ends it. Never shares an engine between two live runs.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TypeVar

import msgspec
from wasmtime import Store, WasmtimeError
from wasmtime.component import Instance, Linker

from loopwright.core.errors import InternalError, Overloaded, ProgramError
from loopwright.runtime.budget import Budget
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandbox import Form, Guest
from loopwright.runtime.sandboxes.code_cache import CodeCache
from loopwright.runtime.sandboxes.outcome import checked_result, error_from_guest
from loopwright.runtime.sandboxes.private_files import CHECK_S, FileFolders, PrivateFiles
from loopwright.runtime.sandboxes.waiting import next_events
from loopwright.runtime.sandboxes.wasm_engine import (
    BLOCKED,
    HOST_INTERFACE,
    NOT_THE_PROGRAMS,
    blocked_functions,
    load_compiled,
    new_engine,
    new_store,
    runner_memory,
    trap_message,
)

T = TypeVar("T")

MAX_THREADS = 1024
MAX_IDLE_SLOTS = 16
CHARGE_S = 0.05  # how long a turn takes at most before it is charged: others may use up the same budget


class ReentrantSandbox:
    """As WasmSandbox, slower. `cpu_seconds` is counted by the wall clock of a program's turns."""

    name = "wasm"
    is_paced = True
    backend = "reentrant"

    def __init__(self, compiled: Path) -> None:
        self._compiled = compiled
        self._folders = FileFolders()
        self._idle: list[Slot] = []
        self._num_live = 0
        self._codes = CodeCache()
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="loopwright-guest")

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
        slot = self._idle.pop() if self._idle else Slot(self._compiled, self._folders)
        self._num_live += 1
        try:
            code, keep = self._codes.find(form, source, filename)
            slot.open(guest, limits, None if code else keep)
            return await self._drive(
                slot, (form, source, filename, arguments, code), guest, limits, budget or Budget(limits)
            )
        finally:
            slot.close()
            self._num_live -= 1
            if len(self._idle) < MAX_IDLE_SLOTS:
                self._idle.append(slot)

    async def close(self) -> None:
        """Ends the threads. No run may be live."""
        self._threads.shutdown()
        self._idle.clear()
        self._folders.close()

    @property
    def num_live(self) -> int:
        """Programs that are running or waiting."""
        return self._num_live

    def check_integrity(self) -> None:
        """Asserts that what is idle belongs to no run."""
        assert self._num_live >= 0
        assert not any(slot.is_open for slot in self._idle)
        self._codes.check_integrity()

    async def _drive(self, slot: "Slot", program: tuple[str, ...], guest: Guest, limits: Limits, budget: Budget) -> str:
        name, arguments = "start", program
        while True:
            match await self._turn(slot, name, arguments, budget):
                case ["wait", (None | int() | float()) as timeout_s]:
                    name, arguments = "resume", (await next_events(guest, timeout_s, slot.files),)
                case ["ok", str() as result]:
                    return checked_result(result, limits)
                case ["error", str() as error]:
                    raise error_from_guest(error, limits)
                case _:
                    raise ProgramError("the program's runner answered something that is not in its contract")

    async def _turn(self, slot: "Slot", name: str, arguments: tuple[str, ...], budget: Budget) -> object:
        """One entry into the guest: what it said. Ends the guest when it takes too long."""
        slot.arm()
        turn = asyncio.get_running_loop().run_in_executor(self._threads, slot.call, name, arguments)
        try:
            await _wait_for(turn, budget, slot.files)
        finally:
            await _finish(slot, turn)
        try:
            return msgspec.json.decode(turn.result())
        except WasmtimeError as trap:
            raise slot.fault_or(ProgramError(trap_message(trap))) from None
        except (msgspec.DecodeError, RecursionError):
            return None


async def _wait_for(turn: "asyncio.Future[str]", budget: Budget, files: PrivateFiles | None) -> None:
    """Until the turn is done. Charges meanwhile what it takes, and measures what it writes. Raises LimitExceeded."""
    charged_s = time.monotonic()
    while not turn.done():
        longest_s = CHARGE_S if files is None else CHECK_S
        await asyncio.wait([turn], timeout=min(budget.cpu_left_s, longest_s))
        charged_s, before_s = time.monotonic(), charged_s
        budget.charge_cpu(charged_s - before_s)
        if files is not None:
            files.check_when_due()


async def _finish(slot: "Slot", turn: "asyncio.Future[str]") -> None:
    """Interrupts the guest if it is still inside, and waits for its thread, however often we are cancelled."""
    if turn.done():
        return
    slot.interrupt()
    while not turn.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([turn])
    turn.exception()  # it trapped; marked as seen


class Slot:
    """An engine with the runner loaded, for one run at a time."""

    def __init__(self, compiled: Path, folders: FileFolders) -> None:
        self._folders = folders
        self._engine = new_engine()
        self._component = load_compiled(self._engine, compiled)
        self._linker = self._new_linker(has_files=False)
        self.files: PrivateFiles | None = None
        self._store: Store | None = None
        self._instance: Instance | None = None
        self._guest: Guest | None = None
        self._keep_code: Callable[[str], None] | None = None  # takes what the guest compiled, once
        self._fault: Exception | None = None
        self._is_interrupted = Event()

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def open(self, guest: Guest, limits: Limits, keep: Callable[[str], None] | None) -> None:
        """Makes the instance for a run. On the event loop's thread. Raises Overloaded. `keep` as for a fiber."""
        self._loop = asyncio.get_running_loop()
        self._guest, self._fault, self._keep_code = guest, None, keep
        self._is_interrupted.clear()
        try:
            self.files = self._folders.new(limits.max_file_bytes) if limits.max_file_bytes else None
            self._store, self._instance = self._instantiate(files=self.files)
        except WasmtimeError as error:
            raise Overloaded(f"no room for another program: {str(error).splitlines()[0]}") from error
        self._store.set_limits(memory_size=self._runner_memory + (limits.memory_mb << 20))

    @cached_property
    def _runner_memory(self) -> int:
        return runner_memory(lambda max_memory: self._instantiate(max_memory)[0].close())

    @cached_property
    def _linker_with_files(self) -> Linker:
        return self._new_linker(has_files=True)

    def _instantiate(self, max_memory: int = -1, files: PrivateFiles | None = None) -> tuple[Store, Instance]:
        store = new_store(self._engine, max_memory, files)
        linker = self._linker if files is None else self._linker_with_files
        return store, linker.instantiate(store, self._component)

    def close(self) -> None:
        """Drops the instance and deletes its files."""
        if self._store is not None:
            self._store.close()
        if self.files is not None:
            self.files.remove()
        self._store = self._instance = self._guest = self._keep_code = self.files = None

    def arm(self) -> None:
        """Called before each turn: from now on `interrupt` ends it, even before it begins."""
        assert self._store is not None
        self._store.set_epoch_deadline(1)

    def interrupt(self) -> None:
        """Makes the guest trap, wherever it is."""
        self._is_interrupted.set()
        self._engine.increment_epoch()

    def call(self, name: str, arguments: tuple[str, ...]) -> str:
        """Calls an export. On a thread that may be held up. Raises WasmtimeError when the guest traps."""
        assert self._store is not None
        assert self._instance is not None
        function = self._instance.get_func(self._store, name)
        assert function is not None
        result = function(self._store, *arguments)
        assert isinstance(result, str)
        return result

    def fault_or(self, error: Exception) -> Exception:
        """What went wrong in the host during the guest's call, else `error`."""
        return error if self._fault is None else InternalError(f"a call of the guest failed: {self._fault!r}")

    def _new_linker(self, *, has_files: bool) -> Linker:
        linker = Linker(self._engine)
        linker.allow_shadowing = True
        linker.add_wasip2()
        with linker.root() as root:
            for interface, name in blocked_functions(has_files=has_files):
                with root.add_instance(interface) as blocked:
                    blocked.add_func(name, _blocked)
            with root.add_instance(HOST_INTERFACE) as host:
                host.add_func("submit", lambda _store, op: self._on_loop(lambda guest: guest.submit(op), 0))
                host.add_func(
                    "log", lambda _store, name, line: self._on_loop(lambda guest: guest.log(name, line), None)
                )
                host.add_func("keep", self._keep)
                host.add_func("wait", self._sleep)
        return linker

    def _on_loop(self, act: Callable[[Guest], T], otherwise: T) -> T:
        """Calls the guest's host where it lives, on the event loop; not once the run is interrupted."""
        done: Future[T] = Future()
        guest = self._guest
        assert guest is not None

        def enter() -> None:
            try:
                done.set_result(otherwise if self._is_interrupted.is_set() else act(guest))
            except Exception as error:  # noqa: BLE001 (it must not be raised in the loop; the run ends with it)
                done.set_exception(error)

        self._loop.call_soon_threadsafe(enter)
        try:
            return done.result()
        except Exception as error:  # noqa: BLE001 (only a WasmtimeError may cross wasmtime's threads)
            self._fault = error
            raise WasmtimeError("the host failed in a call of the guest") from None

    def _keep(self, _store: object, code: str) -> None:
        keep, self._keep_code = self._keep_code, None
        if keep is None:
            raise WasmtimeError(NOT_THE_PROGRAMS)
        self._on_loop(lambda _: keep(code), None)

    def _sleep(self, _store: object, timeout_ms: int) -> str:
        """Holds up this program's thread alone; events come with the next turn."""
        self._is_interrupted.wait(None if timeout_ms < 0 else timeout_ms / 1000)
        return ""


def _blocked(*_arguments: object) -> None:
    raise WasmtimeError(BLOCKED)
