"""Waiting for what another task or process does, without a guess at how long it takes."""

import asyncio
from collections.abc import Callable


async def eventually(is_true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Returns when the condition holds; fails the test when it never does."""
    async with asyncio.timeout(timeout_s):
        while not is_true():  # noqa: ASYNC110 - another process has no event of ours to set
            await asyncio.sleep(0.001)
