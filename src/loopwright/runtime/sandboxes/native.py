"""Runs a program as a task of the event loop, with the sdk and no isolation: for built-in programs and for debugging.

Breakpoints work, and standard output is the process's own. Never use it for code that is not yours: what it does, the
server does. What it leaves running is cut off from its host and not ended.
"""

import asyncio
import bdb
import linecache
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from loopwright.core.errors import Cancelled
from loopwright.runtime.budget import Budget
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandbox import Form, Guest
from loopwright.runtime.sandboxes.outcome import checked_result, error_from_guest
from loopwright.sdk.port import Port, set_current_port
from loopwright.sdk.program import call_main, compile_source, describe_error, load_main
from loopwright.sdk.snippet import load_snippet

_compiled = lru_cache(maxsize=32)(compile_source)  # the built-in programs are run again and again
_LOADERS: dict[Form, Callable[[str, str], Callable[..., Any]]] = {
    "program": partial(load_main, compiled=_compiled),
    "snippet": load_snippet,
}


class NativeSandbox:
    """Executes programs in this process. No limit is held but the time of the caller."""

    name = "native"
    is_paced = False

    def __init__(self) -> None:
        self._ports: set[Port] = set()

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
        """As `Sandbox.run`."""
        _show_debuggers(source, filename)
        load = _LOADERS[form]
        return await self._execute(lambda: load(source, filename), filename, arguments, guest, limits)

    async def run_callable(self, main: Callable[..., Any], arguments: str, guest: Guest, limits: Limits) -> str:
        """The same for a `main` that is imported already."""
        return await self._execute(lambda: main, main.__code__.co_filename, arguments, guest, limits)

    async def close(self) -> None: ...

    @property
    def num_live(self) -> int:
        """Programs that are running."""
        return len(self._ports)

    def check_integrity(self) -> None: ...

    async def _execute(
        self, load: Callable[[], Callable[..., Any]], filename: str, arguments: str, guest: Guest, limits: Limits
    ) -> str:
        port = Port(guest.submit, guest.log)
        self._ports.add(port)
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # Not at once: the guest may wake us inside `submit`, when the port does not know the handle yet.
            loop.call_soon(lambda: port.deliver(guest.take_events()))

        guest.set_waker(wake)
        # A task of its own: the program's context variables are not the caller's.
        program = asyncio.create_task(_program(port, load, filename, arguments, limits))
        try:
            return checked_result(await program, limits)
        finally:
            guest.set_waker(None)
            port.close()
            self._ports.remove(port)


def _show_debuggers(source: str, filename: str) -> None:
    """Keeps the lines under the absolute name too: there a debugger looks, to list them and to set breakpoints."""
    linecache.cache[str(Path(filename).absolute())] = (len(source), None, source.splitlines(keepends=True), filename)


async def _program(
    port: Port, load: Callable[[], Callable[..., Any]], filename: str, arguments: str, limits: Limits
) -> str:
    set_current_port(port)
    try:
        return await call_main(load(), arguments)
    except bdb.BdbQuit:
        raise Cancelled("the debugger was left") from None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # from outside, and not by the program itself
            raise
        raise error_from_guest(describe_error(error, filename), limits) from error
    except (Exception, SystemExit) as error:  # a SystemExit that leaves a task would end the process
        raise error_from_guest(describe_error(error, filename), limits) from error
    finally:
        port.drop_deferred()
