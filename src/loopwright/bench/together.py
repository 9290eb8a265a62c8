"""Runs coroutines together and waits for all. Never leaves one running after another has failed. Called by suites."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order. Raises the first error as itself, not as a group, so that it reads as one line."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
