"""What both Wasm back-ends share: the engine's settings, stores with an empty WASI, and what a trap means.

Never runs a program. Used by `runner_build`, `fibers` and `reentrant`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from wasmtime import Config, Engine, ExitTrap, Store, WasiConfig, WasmtimeError
from wasmtime.component import Component

from loopwright.runtime.sandboxes.private_files import PrivateFiles

HOST_INTERFACE = "loopwright:program/host"

CONFIG = {"epoch_interruption": True, "max_wasm_stack": 512 << 10}
"""Part of the key of the compiled runner: code compiled under other settings does not load."""

WASI_RELEASE = "0.2.12"
"""The one that wasmtime 50.0.1 implements. Under another our definitions would not replace wasmtime's, and no instance
could be made."""

BLOCKED = "the program waited outside asyncio (select, fsync or a socket), which the sandbox does not do; await instead"

NOT_THE_PROGRAMS = "the program called a function of its runner's, which answers the runner alone"

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


def blocked_functions(*, has_files: bool) -> Iterator[tuple[str, str]]:
    """Interfaces and functions in which WASI would hold up the host's thread: these end the program, which is to wait
    in `host.wait` only. To write a file is to call `block`; with files, whatever else could wait in it is here too."""
    blocked = {
        "io/poll": ("poll",) if has_files else ("poll", "[method]pollable.block"),
        "clocks/monotonic-clock": ("subscribe-duration", "subscribe-instant"),
        "sockets/tcp": ("[method]tcp-socket.subscribe",),
        "sockets/udp": ("[method]udp-socket.subscribe",),
        "sockets/ip-name-lookup": ("[method]resolve-address-stream.subscribe",),
        "filesystem/types": ("[method]descriptor.sync", "[method]descriptor.sync-data"),
    }
    for interface, names in blocked.items():
        for name in names:
            yield f"wasi:{interface}@{WASI_RELEASE}", name


def new_store(engine: Engine, max_memory: int = -1, files: PrivateFiles | None = None) -> Store:
    """A store whose guest has clocks and random numbers, and no argument, variable, socket or terminal, no file but
    those of `files`, and at most `max_memory` bytes of linear memory; -1 is no limit."""
    store = Store(engine)
    store.set_limits(memory_size=max_memory)
    wasi = WasiConfig()
    if files is not None:
        wasi.preopen_dir(str(files.folder), "/")
    store.set_wasi(wasi)
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
    if NOT_THE_PROGRAMS in text:
        return NOT_THE_PROGRAMS
    if "call stack exhausted" in text:
        return "the program's calls are nested too deeply for the sandbox's stack"
    if "unreachable" in text:
        return "the program aborted: os.abort, or a fault inside the interpreter such as no memory left"
    return f"the program trapped: {text.strip().splitlines()[-1].strip()}"
