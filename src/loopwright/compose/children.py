"""Starts the worker processes of a distributed system, watches them, and connects to them. Never does their work.

A child ends when its standard input closes, so none outlives its parent.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from loopwright.compose.config import Config
from loopwright.core.errors import ErrorInfo, InternalError, from_info
from loopwright.router.router import Router
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.runs_client import RunsClient

STOP_S = 10.0  # how long a child may take to end by itself


class Ready(msgspec.Struct, frozen=True):
    """The line a child prints once it serves, or why it cannot."""

    error: ErrorInfo | None = None


@asynccontextmanager
async def open_workers(config: Config) -> AsyncIterator[Router]:
    """A model worker and the runtime workers, behind a router."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(socket_folder())
        watches = await stack.enter_async_context(asyncio.TaskGroup())
        clients: dict[str, RunsClient] = {}
        names = [f"runtime-{number}" for number in range(config.num_runtime_workers)]

        def died(name: str) -> None:
            # Without the model worker no run can go on; each runtime worker notices by its own connection.
            if name in clients:
                clients[name].peer_died()

        children = [
            await stack.enter_async_context(_child(name, config, folder, watches, died)) for name in ("model", *names)
        ]
        for child in children:
            await child.ready()
        for name in names:
            clients[name] = await RunsClient.connect(socket_address(folder, name), name="server")
            stack.callback(clients[name].close)
        yield Router(list(clients.values()))


@asynccontextmanager
async def _child(
    name: str, config: Config, folder: Path, watches: asyncio.TaskGroup, died: Callable[[str], None]
) -> AsyncIterator["_Child"]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loopwright.compose.worker",
        name,
        str(folder),
        msgspec.json.encode(config).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # an interrupt from the terminal is for the parent, which then ends its children
    )
    child = _Child(name, process)
    watch = watches.create_task(child.watch(died))
    try:
        yield child
    finally:
        watch.cancel()
        await child.stop()


class _Child:
    """One worker process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process

    async def ready(self) -> None:
        """Waits until it serves. Raises what it says it failed with."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise InternalError(f"the {self._name} process ended with status {status} before it was ready")
        error = msgspec.json.decode(line, type=Ready).error
        if error is not None:
            raise from_info(error)

    async def watch(self, died: Callable[[str], None]) -> None:
        await self._process.wait()
        died(self._name)

    async def stop(self) -> None:
        """Closes its input, which asks it to end, and waits; kills it when it takes too long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
