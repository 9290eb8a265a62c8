"""Waits for a step of the engine on the event loop. Never looks into it. Used by the controller, once a step."""

import asyncio
from concurrent.futures import Future

from loopwright.core.batch import StepResult


async def result_of(step: Future[StepResult]) -> StepResult:
    """Waits for a step. Cancelling this does not cancel the step, which cannot be taken back. It costs half of what
    `asyncio.wrap_future` and `asyncio.shield` do, once for each step."""
    loop = asyncio.get_running_loop()
    if step.done():
        await asyncio.sleep(0)  # programs come before the next step
        return step.result()
    is_over = loop.create_future()

    def end() -> None:
        if not is_over.done():
            is_over.set_result(None)

    def tell(_: Future[StepResult]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(end)

    step.add_done_callback(tell)
    await is_over
    return step.result()
