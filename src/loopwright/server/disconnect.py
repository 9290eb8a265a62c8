"""Ends work whose client has gone. Never knows what the work is. Used by every route that waits for a run."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

ResultT = TypeVar("ResultT")


async def unless_disconnected(receive: Receive, work: Coroutine[None, None, ResultT]) -> ResultT:
    """The work's result. When the client goes first, the work is cancelled and waited for: raises ClientDisconnect.

    The request's body must have been read: from then on, all there is to receive is the disconnection."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
