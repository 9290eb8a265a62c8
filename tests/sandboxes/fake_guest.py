"""A host for programs under test: answers each call one turn of the event loop later, and records everything.

Never talks to a model. Used by every test of the sandboxes.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any


class FakeGuest:
    """Implements Guest. Knows a few operations, each named by what it does:

    echo → its value · later → its value after `turns` turns of the loop · never → no answer · fail → the error given ·
    count → parts 0 … n-1, then "end"; interrupt ends it early with "interrupted"
    """

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.lines: list[tuple[str, str]] = []
        self.printed = asyncio.Event()
        self.open: dict[int, dict[str, Any]] = {}
        self._events: list[list[Any]] = []
        self._wake: Callable[[], None] | None = None

    def submit(self, op: str) -> int:
        decoded = json.loads(op)
        self.ops.append(decoded)
        handle = len(self.ops)
        loop = asyncio.get_running_loop()
        match decoded["op"]:
            case "echo":
                self.open[handle] = decoded
                loop.call_soon(self._end, handle, "ok", decoded.get("value"))
            case "later":
                self.open[handle] = decoded
                self._after(decoded["turns"], handle, decoded.get("value"))
            case "never":
                self.open[handle] = decoded
            case "fail":
                self.open[handle] = decoded
                loop.call_soon(self._end, handle, "error", decoded["error"])
            case "count":
                self.open[handle] = decoded
                loop.call_soon(self._count, handle, 0, decoded["n"])
            case "interrupt":
                self._end(decoded["handle"], "ok", "interrupted")
            case "cancel":
                self.open.pop(decoded["handle"], None)
        return handle

    def log(self, stream: str, line: str) -> None:
        self.lines.append((stream, line))
        self.printed.set()

    def take_events(self) -> str:
        events, self._events = self._events, []
        return json.dumps(events) if events else ""

    def set_waker(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        if wake is not None and self._events:
            asyncio.get_running_loop().call_soon(self._wake_now)

    def names(self) -> list[str]:
        """The operations that were submitted, in order."""
        return [op["op"] for op in self.ops]

    def _after(self, turns: int, handle: int, value: object) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._after, turns - 1, handle, value)
        else:
            self._end(handle, "ok", value)

    def _count(self, handle: int, number: int, end: int) -> None:
        if handle not in self.open:
            return
        if number == end:
            self._end(handle, "ok", "end")
            return
        self._send(handle, "part", number)
        asyncio.get_running_loop().call_soon(self._count, handle, number + 1, end)

    def _end(self, handle: int, kind: str, payload: object) -> None:
        if self.open.pop(handle, None) is not None:
            self._send(handle, kind, payload)

    def _send(self, handle: int, kind: str, payload: object) -> None:
        self._events.append([handle, kind, payload])
        self._wake_now()

    def _wake_now(self) -> None:
        if self._wake is not None:
            self._wake()
