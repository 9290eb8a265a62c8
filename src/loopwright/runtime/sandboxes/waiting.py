"""Waits, on the event loop, for what a waiting guest waits for. Used by both Wasm sandboxes."""

import asyncio

from loopwright.runtime.sandbox import Guest
from loopwright.runtime.sandboxes.private_files import PrivateFiles


async def next_events(guest: Guest, timeout_s: float | None, files: PrivateFiles | None = None) -> str:
    """As `_next_events`. What the guest wrote before is measured meanwhile, if that was too soon until now. Raises
    LimitExceeded."""
    due_s = files.due_in_s() if files is not None else 0.0
    if files is None or (timeout_s is not None and timeout_s <= due_s):
        return await _next_events(guest, timeout_s)
    events = await _next_events(guest, due_s)
    if not events:
        files.check_when_due()
        events = await _next_events(guest, None if timeout_s is None else max(timeout_s - due_s, 0))
    return events


async def _next_events(guest: Guest, timeout_s: float | None) -> str:
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
