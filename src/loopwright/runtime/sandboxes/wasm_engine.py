"""What both Wasm back-ends share: the engine's settings, stores with an empty WASI, and what a trap means.

Never runs a program. Used by `runner_build`, `fibers` and `reentrant`.
"""

from collections.abc import Callable
from pathlib import Path

from wasmtime import Config, Engine, ExitTrap, Store, WasiConfig, WasmtimeError
from wasmtime.component import Component

HOST_INTERFACE = "loopwright:program/host"

CONFIG = {"epoch_interruption": True, "max_wasm_stack": 512 << 10}
"""Part of the key of the compiled runner: code compiled under other settings does not load."""

WASI_POLL_INTERFACE = "wasi:io/poll@0.2.12"
"""The release that wasmtime 50.0.1 implements. Under another name our definitions would not replace wasmtime's, and
instantiation would fail."""

WASI_POLL_FUNCTIONS = ("poll", "[method]pollable.block")
"""Where WASI would block the host's thread. A program waits in `host.wait` only, so that these end it instead."""

BLOCKED = "the program waited outside asyncio (select, poll or a socket), which the sandbox does not do; await instead"

LARGE_TICKS = 1 << 40

MAX_RUNNER_MIB = 256


def new_engine() -> Engine:
    """An engine whose guests can be interrupted by ticks of its epoch."""
    config = Config()
    for name, value in CONFIG.items():
        setattr(config, name, value)
    return Engine(config)


def load_compiled(engine: Engine, compiled: Path) -> Component:
    """Maps a compiled runner into memory. Raises WasmtimeError when it was made by another wasmtime or machine."""
    return Component.deserialize_file(engine, str(compiled))


def new_store(engine: Engine, max_memory: int = -1) -> Store:
    """A store whose guest has clocks and random numbers, and no file, argument, variable, socket or terminal, and at
    most `max_memory` bytes of linear memory; -1 is no limit."""
    store = Store(engine)
    store.set_limits(memory_size=max_memory)
    store.set_wasi(WasiConfig())
    store.set_epoch_deadline(LARGE_TICKS)
    return store


def runner_memory(instantiate: Callable[[int], object]) -> int:
    """Bytes of linear memory, rounded up to MiB, that an instance has before it runs anything: the least limit under
    which `instantiate` makes one. Every program shares them, so that no limit of a program's counts them."""
    too_small_mib, enough_mib = 0, MAX_RUNNER_MIB
    while enough_mib - too_small_mib > 1:
        middle_mib = (too_small_mib + enough_mib) // 2
        try:
            instantiate(middle_mib << 20)
        except WasmtimeError:
            too_small_mib = middle_mib
        else:
            enough_mib = middle_mib
    return enough_mib << 20


def trap_message(error: WasmtimeError) -> str:
    """One line that says, in a program's terms, why its instance trapped."""
    if isinstance(error, ExitTrap):
        return f"the program ended its process with exit code {error.code}; return from main instead"
    text = str(error)
    if BLOCKED in text:
        return BLOCKED
    if "call stack exhausted" in text:
        return "the program's calls are nested too deeply for the sandbox's stack"
    if "unreachable" in text:
        return "the program aborted: os.abort, or a fault inside the interpreter such as no memory left"
    return f"the program trapped: {text.strip().splitlines()[-1].strip()}"
