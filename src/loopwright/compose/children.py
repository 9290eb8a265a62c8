"""Starts the worker processes of a distributed system, watches them, and connects to them. Never does their work.

A child ends when its standard input closes, so none outlives its parent, however that ends. When a runtime worker dies
by itself, its runs end with an error; when a model worker does, what its model was doing ends so. Another is started
in its place.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loopwright.compose.config import Config
from loopwright.compose.exchange import make_exchange
from loopwright.core.errors import ErrorInfo, InternalError, LoopwrightError, from_info
from loopwright.core.exchange import Exchange
from loopwright.router.router import Router
from loopwright.transport.addresses import socket_address, socket_folder
from loopwright.transport.exchange_server import ExchangeServer
from loopwright.transport.runs_client import RunsClient

EXCHANGE = "exchange"  # the socket of this process that workers connect to
Report = Callable[[str, float | None], None]

RETRY_S = 5.0
STOP_S = 10.0  # how long the children may take to end by themselves

log = logging.getLogger(__name__)


class Starting(msgspec.Struct, frozen=True, tag="starting"):
    """A line of a child that does long work before it serves: what, and how much of it is done."""

    stage: str
    fraction: float | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The line a child prints once it serves, or why it cannot."""

    error: ErrorInfo | None = None


def model_worker(number: int) -> str:
    """What the process of the model with that number is called."""
    return f"model-{number}" if number else "model"


def is_model_worker(name: str) -> bool:
    return name.partition("-")[0] == "model"


def is_api_worker(name: str) -> bool:
    return name.partition("-")[0] == "api"


def model_number(name: str) -> int:
    return int(name.partition("-")[2] or 0)


def runtime_workers(config: Config) -> list[str]:
    """What the runtime workers are called."""
    return [f"runtime-{number}" for number in range(config.num_runtime_workers)]


@dataclass(frozen=True, slots=True)
class Workers:
    """All of a distributed system. Their sockets are in `folder`."""

    router: Router
    folder: Path


@asynccontextmanager
async def open_workers(config: Config, report: Report | None = None) -> AsyncIterator[Workers]:
    """A worker for each model and the runtime workers, behind a router. Raises what a worker cannot start for."""
    names = runtime_workers(config)
    models = [model_worker(number) for number in range(len(config.model_names))]
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(socket_folder())
        children = await stack.enter_async_context(_children([*models, *names], folder, config))
        exchange = stack.enter_context(closing(make_exchange(config.runtime)))
        await stack.enter_async_context(_serving(exchange, socket_address(folder, EXCHANGE)))
        for child in children:  # the model worker first: when it cannot start, neither can those that wait for it
            await child.ready(report)
        clients = [await stack.enter_async_context(connected(folder, name)) for name in names]
        router = Router(clients)
        stack.push_async_callback(router.close)
        watches = await stack.enter_async_context(asyncio.TaskGroup())
        num_models = len(models)
        keeping = [_keep_model(child, folder, config) for child in children[:num_models]]
        for child, client in zip(children[num_models:], clients, strict=True):
            keeping.append(_keep_runtime(child, client, router, folder, config))
        for one in keeping:
            stack.callback(watches.create_task(one).cancel)
        yield Workers(router, folder)


class ApiWorkers:
    """Processes that speak HTTP, on one port. One that dies loses its connections, and another takes its place."""

    def __init__(self, children: list["_Child"], keeping: list["asyncio.Task[None]"], patience_s: float) -> None:
        self._children, self._keeping, self._patience_s = children, keeping, patience_s

    def stop(self) -> None:
        """Has them take no more requests. Twice is allowed."""
        for one in self._keeping:
            one.cancel()
        for child in self._children:
            child.ask_to_end()

    async def drained(self) -> None:
        """Stops them, and waits until the requests under way have ended."""
        self.stop()
        ending = (child.ended(self._patience_s) for child in self._children)
        await asyncio.gather(*self._keeping, *ending, return_exceptions=True)


@asynccontextmanager
async def open_api_workers(config: Config, folder: Path) -> AsyncIterator[ApiWorkers]:
    """`server.api_workers` of them, at `server.host` and `server.port`, until the end."""
    names = [f"api-{number}" for number in range(config.server.api_workers)]
    patience_s = config.server.grace_s + STOP_S
    async with _children(names, folder, config, patience_s) as children:
        for child in children:
            await child.ready()
        keeping = [asyncio.create_task(_keep_api(child, folder, config)) for child in children]
        workers = ApiWorkers(children, keeping, patience_s)
        try:
            yield workers
        finally:
            await workers.drained()


async def _keep_api(child: "_Child", folder: Path, config: Config) -> None:
    async def admit(_: AsyncExitStack) -> Callable[[], None]:
        return lambda: None

    await _keep(child, "its connections are closed", lambda: None, admit, folder, config)


@asynccontextmanager
async def connected(folder: Path, name: str) -> AsyncIterator[RunsClient]:
    """The runtime worker of that name, as the router has it."""
    client = await RunsClient.connect(socket_address(folder, name), name="server")
    try:
        yield client
    finally:
        client.close()


async def _keep_runtime(child: "_Child", client: RunsClient, router: Router, folder: Path, config: Config) -> None:
    """Has another runtime worker take the place of each that dies, until cancelled."""

    async def admit(stack: AsyncExitStack) -> Callable[[], None]:
        client = await stack.enter_async_context(connected(folder, child.name))
        await router.admit(client)
        return client.peer_died

    await _keep(child, "its runs are over", client.peer_died, admit, folder, config)


async def _keep_model(child: "_Child", folder: Path, config: Config) -> None:
    """The same for a model worker: runtime workers notice by themselves that it has gone, and that there is another."""

    async def admit(_: AsyncExitStack) -> Callable[[], None]:
        return lambda: None

    await _keep(child, "what its model was doing has failed", lambda: None, admit, folder, config)


async def _keep(
    child: "_Child",
    loss: str,
    tell: Callable[[], None],
    admit: Callable[[AsyncExitStack], Awaitable[Callable[[], None]]],
    folder: Path,
    config: Config,
) -> None:
    """`tell` says that the child has died; `admit` takes in a new one and returns the next `tell`."""
    consequence = f"{loss}, and another is started in its place"
    await child.died(consequence)
    tell()
    while True:
        async with AsyncExitStack() as stack:
            try:
                (child,) = await stack.enter_async_context(_children([child.name], folder, config))
                await child.ready()
                tell = await admit(stack)
            except (LoopwrightError, OSError) as error:
                log.error("the %s process cannot start again; next try in %g s: %s", child.name, RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                continue
            log.warning("the %s process is there again", child.name)
            await child.died(consequence)
            tell()


@asynccontextmanager
async def _serving(exchange: Exchange, address: str) -> AsyncIterator[None]:
    """The exchange, open to the workers."""
    is_ready = asyncio.Event()
    serving = asyncio.create_task(ExchangeServer(exchange, address).serve(is_ready.set))
    try:
        waiting = asyncio.create_task(is_ready.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            serving.result()
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def _children(
    names: list[str], folder: Path, config: Config, patience_s: float = STOP_S
) -> AsyncIterator[list["_Child"]]:
    """One process for each name; all are gone at the end."""
    children: list[_Child] = []
    try:
        for name in names:
            children.append(await _Child.start(name, folder, config))
        yield children
    finally:
        for child in children:
            child.ask_to_end()
        await asyncio.gather(*(child.ended(patience_s) for child in children))


class _Child:
    """One worker process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, name: str, folder: Path, config: Config) -> "_Child":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loopwright.compose.worker"),
            *(name, str(folder), msgspec.json.encode(config).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the parent, which then ends its children
        )
        return cls(name, process)

    async def ready(self, report: Report | None = None) -> None:
        """Waits until it serves; `report` is told what it does until then. Raises what it says it failed with."""
        assert self._process.stdout is not None
        while True:
            line = await self._process.stdout.readline()
            if not line:
                status = await self._process.wait()
                raise InternalError(f"the {self.name} process ended with status {status} before it served")
            said = msgspec.json.decode(line, type=Ready | Starting)
            if isinstance(said, Ready):
                break
            if report is not None:
                report(said.stage, said.fraction)
        if said.error is not None:
            raise from_info(said.error)

    async def died(self, consequence: str) -> None:
        """Waits until it ends although nobody asked it to."""
        status = await self._process.wait()
        log.error("the %s process ended with status %d: %s", self.name, status, consequence)

    def ask_to_end(self) -> None:
        """Closes its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def ended(self, patience_s: float) -> None:
        """Waits until it has ended; kills it when it takes longer than that."""
        try:
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        except TimeoutError:
            log.warning("the %s process did not end within %g s and is killed", self.name, patience_s)
            self._process.kill()
            await self._process.wait()
