"""Runs a verb's work on an event loop so that an interrupt stays one. Never handles it: `main` does.

The loop cancels the work, and what is closed then may fail in ways of its own, which nobody asked about.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_work(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """As `asyncio.run`. Raises KeyboardInterrupt, and nothing else, for work that was interrupted and did not end
    well."""
    interrupts: list[int] = []
    try:
        return asyncio.run(_counting(work, interrupts))
    except (Exception, asyncio.CancelledError) as error:
        if interrupts:
            raise KeyboardInterrupt from error
        raise


async def _counting(work: Coroutine[Any, Any, ResultT], interrupts: list[int]) -> ResultT:
    """The work, with each interrupt noted before asyncio's own handler cancels it."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        return await work

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        return await work
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, usual)
