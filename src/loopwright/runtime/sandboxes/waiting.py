"""Waits, on the event loop, for what a waiting guest waits for. Used by both Wasm sandboxes."""

import asyncio

from loopwright.runtime.sandbox import Guest


async def next_events(guest: Guest, timeout_s: float | None) -> str:
    """The guest's events when some have come, "" after `timeout_s`. A timeout of 0 lets other tasks run once."""
    if timeout_s == 0:
        await asyncio.sleep(0)
        return guest.take_events()
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    guest.set_waker(wake)
    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    try:
        await woken
    finally:
        guest.set_waker(None)
        if timer is not None:
            timer.cancel()
    return guest.take_events()
