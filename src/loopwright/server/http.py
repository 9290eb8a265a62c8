"""Listens for HTTP, until told to stop. Never knows a route. Called by compose with the application."""

import asyncio
import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.server.connection import STALL_S, stalling_after

GRACE_S = 5  # how long what is under way may go on after the word to stop
END_S = 2  # how long a client may take to read that it was ended
BACKLOG = 2048
MAX_PORT = 65535


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    ready: Callable[[int], None] = lambda port: None,
    *,
    stall_s: float = STALL_S,
    grace_s: int = GRACE_S,
    others_done: Callable[[], Awaitable[None]] | None = None,
    listener: socket.socket | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> signal.Signals | None:
    """Serves until SIGINT, SIGTERM or cancellation, then takes no more, and lets requests under way end for `grace_s`.

    What no request waits for may end in the same time, on SIGTERM: `others_done` returns when it has. `stopping` is
    called at the first signal; a second one waits for nothing. `ready` gets the port, which is chosen when `port` is 0;
    `listener` listens already, in the place of host and port. Clients that read nothing for `stall_s` are cut off.
    Returns the first signal. Raises Unavailable (say, the port is in use) or BadRequest."""
    listener = listener or listen(host, port)
    config = uvicorn.Config(
        app,
        http=stalling_after(stall_s),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_s,
    )
    server = _Server(config, lambda: ready(listener.getsockname()[1]), stopping)
    with listener, _stopped_by_signals(server):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise
        finally:
            await _end(server.server_state.tasks)
        if server.stopped_by == signal.SIGTERM and others_done is not None:
            await server.wait_for(others_done(), grace_s)
    return server.stopped_by


def listen(host: str, port: int, *, shares_port: bool = False) -> socket.socket:
    """A listening socket. With `shares_port` others that do so may listen there too, and each gets some of the
    connections. Raises Unavailable or BadRequest in one line that says what to do."""
    listener = bind(host, port, shares_port=shares_port)
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def listen_at(path: Path) -> socket.socket:
    """A Unix socket that listens; whoever may enter its folder may connect. Raises Unavailable."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen at {path}: {error.strerror or error}") from error
    return listener


def bind(host: str, port: int, *, shares_port: bool = False) -> socket.socket:
    """A socket that has the port and does not listen. Raises as `listen`."""
    if not 0 <= port <= MAX_PORT:
        raise BadRequest(f"the port {port} does not exist", hint=f"choose one from 0 to {MAX_PORT}", field="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)  # asyncio turns off Nagle's delay only where TCP is named
    except OSError as error:
        raise BadRequest(f"cannot listen on {host}:{port}: {error}", hint="use an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> Unavailable:
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"port {port} of {host} is in use", hint="stop what uses it, or choose another with --port")
    return Unavailable(f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another with --host or --port")


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Requests that outlived the grace: each still has its run to cancel, and an end to tell its client."""
    remaining = list(tasks)
    for task in remaining:
        if not task.cancelling():  # uvicorn may have done it: a second time would cut the ending short
            task.cancel()
    if remaining:
        _, deaf = await asyncio.wait(remaining, timeout=END_S)
        for task in deaf:  # its client reads nothing, not even the end
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to us and says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self.stopped_by: signal.Signals | None = None
        self._stopped_s = 0.0
        self._is_hurried = asyncio.Event()
        self._ready, self._stopping = ready, stopping

    def stop(self, received: signal.Signals) -> None:
        """The first signal asks to stop, the second to wait for nothing."""
        if self.should_exit:
            self.force_exit = True
            self._is_hurried.set()
        else:
            self.stopped_by, self._stopped_s = received, asyncio.get_running_loop().time()
            self.should_exit = True
            self._stopping()

    async def wait_for(self, work: Awaitable[None], grace_s: float) -> None:
        """Waits for the work until `grace_s` after the first signal, or a second one."""
        left_s = max(0.0, self._stopped_s + grace_s - asyncio.get_running_loop().time())
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._is_hurried.wait())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _stopped_by_signals(server: _Server) -> Iterator[None]:
    """The first signal asks the server to stop, the second does not wait for requests. In the main thread only."""

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for one in signals:
        loop.add_signal_handler(one, server.stop, one)
    try:
        yield
    finally:
        for one in signals:
            loop.remove_signal_handler(one)
