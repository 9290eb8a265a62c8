"""The one way out for HTTP: of programs, as their permissions say, and of the server's tools. Never speaks it: the
client of each run does. Called by services.

The libraries are loaded on a thread when the first run asks for them: with the certificates that takes more than a
tenth of a second, which no start should wait for and no neighbour.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from loopwright.core.outside_calls import HttpClose, HttpOpen, HttpRead, HttpRequest
from loopwright.core.results import Done

if TYPE_CHECKING:
    import ssl

    from loopwright.runtime.dialing import Resolve, Resolver
    from loopwright.runtime.http_client import Gate, HttpClient

Loaded: TypeAlias = "tuple[type[HttpClient], Resolver, ssl.SSLContext]"


class Egress:
    """What all runs share: the resolver's threads and the certificates. Used on one event loop."""

    def __init__(self, resolve: "Resolve | None" = None) -> None:
        self._resolve = resolve  # None: the machine's
        self._loaded: asyncio.Task[Loaded] | None = None

    @asynccontextmanager
    async def open(self, gate: "Gate") -> AsyncIterator["RunEgress"]:
        """The way out for one run; at the end all that it has open is closed."""
        run = RunEgress(self, gate)
        try:
            yield run
        finally:
            await run.close()

    async def close(self) -> None:
        if self._loaded is not None:
            _, resolver, _ = await self._loaded
            resolver.close()

    async def make_client(self, gate: "Gate") -> "HttpClient":
        if self._loaded is None:
            self._loaded = asyncio.create_task(asyncio.to_thread(_load))
            self._loaded.add_done_callback(self._forget_if_failed)
        client, resolver, ssl_context = await asyncio.shield(self._loaded)
        return client(gate, self._resolve or resolver, ssl_context)

    def _forget_if_failed(self, loaded: "asyncio.Task[Loaded]") -> None:
        """What the machine lacked, say a file descriptor, it may have when the next request comes."""
        if loaded.cancelled() or loaded.exception() is not None:
            self._loaded = None


class RunEgress:
    """As HttpClient, which is made at the first call."""

    def __init__(self, egress: Egress, gate: "Gate") -> None:
        self._egress = egress
        self._gate = gate
        self._client: HttpClient | None = None

    async def request(self, call: HttpRequest) -> dict[str, Any]:
        return await (await self._opened()).request(call)

    async def open(self, call: HttpOpen) -> dict[str, Any]:
        return await (await self._opened()).open(call)

    async def read(self, call: HttpRead) -> dict[str, Any]:
        return await (await self._opened()).read(call)

    async def close_stream(self, call: HttpClose) -> Done:
        return await (await self._opened()).close_stream(call)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _opened(self) -> "HttpClient":
        if self._client is None:
            made = await self._egress.make_client(self._gate)
            self._client = self._client or made  # two calls may come at once
        return self._client


def _load() -> Loaded:
    from loopwright.runtime.dialing import Resolver  # noqa: PLC0415 (see above)
    from loopwright.runtime.http_client import HttpClient, make_ssl_context  # noqa: PLC0415 (see above)

    return HttpClient, Resolver(), make_ssl_context()
