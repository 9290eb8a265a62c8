"""The HTTP side of a server: its application, and processes that speak HTTP in place of the first one.

No request is handled here. With `server.api_workers` the first process listens at a Unix socket alone, for what has to
be in one place; the others share the port, have routers of their own over the same runtime workers, and send on what
they cannot answer.
"""

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from loopwright.compose.children import connected, open_api_workers, runtime_workers
from loopwright.compose.config import Config
from loopwright.compose.system import DistributedSystem, System
from loopwright.compose.tenants import tenants_of
from loopwright.core.errors import BadRequest, LoopwrightError
from loopwright.core.runs import Runs
from loopwright.router.router import Router
from loopwright.server.app import create_app
from loopwright.server.http import bind, listen, listen_at, serve
from loopwright.transport.runs_client import RunsClient

MAIN = "http"  # the socket of the first process
RETRY_S = 0.2

App: TypeAlias = Callable[..., Awaitable[Any]]
"""An ASGI application."""

log = logging.getLogger(__name__)


def make_app(runs: Runs, config: Config) -> App:
    """The application of a server over these runs."""
    server = config.server
    gc.freeze()  # what is there now stays: to look through it for garbage would take a tenth of a second each time
    return create_app(
        runs,
        host=server.host,
        tenant_of=tenants_of(server.keys),
        kept=server.responses,
        max_body_bytes=server.max_body_bytes,
    )


def check_api_workers(config: Config) -> None:
    """Raises BadRequest if there cannot be as many as are asked for."""
    if config.server.api_workers and not config.num_runtime_workers:
        raise BadRequest(
            f"server.api_workers is {config.server.api_workers}, and programs run in the first process",
            hint="--processes 2 or more has programs in processes of their own",
            field="server.api_workers",
        )


async def serve_http(
    config: Config, system: System | DistributedSystem, ready: Callable[[int], None],
    others_done: Callable[[], Awaitable[None]],
) -> signal.Signals | None:  # fmt: skip
    """As `server.http.serve`, over a system, in this process or in those that are configured."""
    server, app = config.server, make_app(system.runs, config)
    limits = {"stall_s": server.stall_s, "grace_s": server.grace_s}
    if not server.api_workers:
        return await serve(app, server.host, server.port, ready, others_done=others_done, **limits)  # type: ignore[arg-type]
    assert isinstance(system, DistributedSystem), "check_api_workers"
    with bind(server.host, server.port, shares_port=True) as holding:  # so that the port stays ours
        port = holding.getsockname()[1]
        config = msgspec.structs.replace(config, server=msgspec.structs.replace(server, port=port))
        listening = listen_at(system.folder / MAIN)
        async with open_api_workers(config, system.folder) as workers:

            async def all_done() -> None:
                await asyncio.gather(workers.drained(), others_done())

            return await serve(
                app, server.host, port, lambda _: ready(port), others_done=all_done, listener=listening,
                stopping=workers.stop, **limits,  # type: ignore[arg-type]
            )  # fmt: skip


class ApiServer:
    """One of the processes that speak HTTP."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder

    async def serve(self, ready: Callable[[], None]) -> None:
        """Until cancelled; then requests under way have the server's grace to end in."""
        from loopwright.server.forwarding import Forwarding  # noqa: PLC0415 (brings httpx, which one process does without)

        server = self._config.server
        async with AsyncExitStack() as stack:
            names = runtime_workers(self._config)
            clients = [await stack.enter_async_context(connected(self._folder, name)) for name in names]
            router = Router(clients)
            stack.push_async_callback(router.close)
            for name, client in zip(names, clients, strict=True):
                stack.callback(asyncio.create_task(self._keep(router, name, client)).cancel)
            forwarding = Forwarding(make_app(router, self._config), self._folder / MAIN)
            stack.push_async_callback(forwarding.close)
            await serve(
                forwarding, server.host, server.port, lambda _: ready(), stall_s=server.stall_s, grace_s=server.grace_s,
                listener=listen(server.host, server.port, shares_port=True),
            )  # fmt: skip

    async def _keep(self, router: Router, name: str, client: RunsClient) -> None:
        """Takes in the runtime worker that takes the place of one that died, until cancelled."""
        await client.ended()
        while True:
            async with AsyncExitStack() as stack:
                try:
                    client = await stack.enter_async_context(connected(self._folder, name))
                    await router.admit(client)
                except (LoopwrightError, OSError) as error:
                    log.warning("the %s process is not there yet: %s", name, error)
                    await asyncio.sleep(RETRY_S)
                    continue
                await client.ended()
