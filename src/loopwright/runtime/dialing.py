"""Makes the connections of one run: a name is resolved once for each, and what was checked is what is dialled.

Never decides what is permitted: `check` does. The connection pool of a run's HTTP client calls it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import httpcore

from loopwright.runtime.addresses import as_address
from loopwright.runtime.permissions import LOOPBACK_NAME

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Name and port to addresses. Raises OSError."""

CheckAddress: TypeAlias = Callable[[str, int, str], None]
"""Host, port, the address found for it. Raises PermissionDenied."""

MAX_THREADS = 16
MAX_LOOKUPS_OF_ONE_RUN = 4
MAX_TRIED = 4  # of the addresses that a name has


class Resolver:
    """The machine's resolver, on threads of its own: a slow name holds up nothing but names. One for all runs."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="loopwright-resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, host, port)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Dialer(httpcore.AsyncNetworkBackend):
    """The network below one run's connection pool."""

    def __init__(self, check: CheckAddress, resolve: Resolve) -> None:
        self._check = check
        self._resolve = resolve
        self._free_lookups = asyncio.Semaphore(MAX_LOOKUPS_OF_ONE_RUN)
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the backend's interface)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises PermissionDenied if any address of the host may not be dialled: an answer that mixes is a trick."""
        addresses = await self._addresses(host, port)
        for address in addresses:
            self._check(host, port, address)
        failures: list[str] = []
        for address in addresses[:MAX_TRIED]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError as error:
                failures.append(f"{address}: {error}")
        raise httpcore.ConnectError("; ".join(failures) or f"{host} has no address")

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 (the backend's interface)
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise AssertionError("no URL leads here")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        if as_address(host) is not None:
            return [host]
        if host == LOOPBACK_NAME:
            return ["127.0.0.1", "::1"]
        await self._free_lookups.acquire()
        looking = asyncio.ensure_future(self._resolve(host, port))
        looking.add_done_callback(self._looked_up)  # a thread is free again when it has ended, waited for or not
        try:
            found = await asyncio.shield(looking)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error.strerror or error}") from None
        return sorted(dict.fromkeys(found), key=lambda address: ":" in address)  # IPv4 first: it fails faster

    def _looked_up(self, looking: "asyncio.Future[Sequence[str]]") -> None:
        self._free_lookups.release()
        if not looking.cancelled():
            looking.exception()  # nobody may be waiting for it any more


def _look_up(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
