"""Long work beside the event loop that nobody has to wait for. Never knows the work. Used where a model is loaded.

`asyncio.to_thread` is not enough: the loop waits for its threads at its end, so that an interrupt of a load that takes
minutes would take as long.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

ResultT = TypeVar("ResultT")


async def on_daemon_thread(work: Callable[[], ResultT]) -> ResultT:
    """The result of `work`, or what it raises. When the caller is cancelled, the thread goes on until the process ends:
    then its result is dropped."""
    future: Future[ResultT] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as problem:  # noqa: BLE001 (the boundary of a thread: the caller raises it)
            future.set_exception(problem)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()
    Thread(target=run, name="loopwright-loading", daemon=True).start()
    return await asyncio.wrap_future(future)
