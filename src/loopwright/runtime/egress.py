"""The one way out for a program's HTTP. Never speaks it: its client does. Called by the host.

The client is made on a thread when the first program asks for it: httpx, and the certificates that it loads, take more
than a tenth of a second, which no start should wait for and no neighbour.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from loopwright.core.outside_calls import HttpRequest
from loopwright.runtime.permissions import Permissions

if TYPE_CHECKING:
    from loopwright.runtime.http_client import HttpClient


class Egress:
    """One client for all runs. Used on one event loop."""

    def __init__(self) -> None:
        self._client: asyncio.Task[HttpClient] | None = None

    async def request(self, call: HttpRequest, permissions: Permissions) -> dict[str, Any]:
        """As `HttpClient.request`."""
        if self._client is None:
            self._client = asyncio.create_task(asyncio.to_thread(_make_client))
            self._client.add_done_callback(self._forget_if_failed)
        client = await asyncio.shield(self._client)
        return await client.request(call, permissions)

    async def close(self) -> None:
        if self._client is not None:
            await (await self._client).close()

    def _forget_if_failed(self, made: "asyncio.Task[HttpClient]") -> None:
        """What the machine lacked, say a file descriptor, it may have when the next request comes."""
        if made.cancelled() or made.exception() is not None:
            self._client = None


def _make_client() -> "HttpClient":
    from loopwright.runtime.http_client import HttpClient  # noqa: PLC0415 (see above)

    return HttpClient()
