"""The program's one door to its host: calls out, answers in. Never knows what a call means.

Used by the rest of the sdk; filled with answers by the sandbox that holds the program, all on one thread.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from loopwright.sdk.errors import BadRequest, InternalError, error_from_data
from loopwright.sdk.json_fault import json_fault

Operation = dict[str, Any]

_OVER = "the run is over; it takes no more calls"

# Made once: json.dumps makes an encoder for each call that wants another form than its own.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode


class Port:
    """Matches answers to calls by handle.

    `submit` takes one call as JSON and returns its handle; `log` takes (stream, line). Both return at once."""

    def __init__(self, submit: Callable[[str], int], log: Callable[[str, str], None]) -> None:
        self.log = log
        self.state: Any = None  # what `run_state` keeps of the run
        self._submit = submit
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, Stream] = {}
        self._deferred: list[Operation] = []
        self._is_closed = False

    def post(self, op: Operation) -> None:
        """Issues a call whose answer nobody waits for."""
        self._send({**op, "answer": False})

    def defer(self, op: Operation) -> None:
        """As `post`, before the next call or in the loop's next turn, and not at all if the run is over by then: for
        what gives back what ends with the run anyway."""
        if self._is_closed:
            raise RuntimeError(_OVER)
        if not self._deferred:
            try:
                asyncio.get_running_loop().call_soon(self._send_deferred)
            except RuntimeError:  # no loop runs: a context is dropped while the interpreter ends
                self.post(op)
                return
        self._deferred.append(op)

    def drop_deferred(self) -> None:
        """`main` is over, and with it what was deferred."""
        self._deferred.clear()

    def issue(self, op: Operation) -> "asyncio.Future[Any]":
        """Issues a call now; the future completes with its payload, or raises its error."""
        answer = _Answer(loop=asyncio.get_running_loop())
        answer.port, answer.handle, answer.goes_on, answer.kept = self, self._send(op), False, None
        self._futures[answer.handle] = answer
        return answer

    def stream(self, op: Operation) -> "Stream":
        """Issues a call that answers in parts."""
        handle = self._send(op)
        stream = Stream(self, handle)
        self._streams[handle] = stream
        return stream

    def deliver(self, events: str) -> None:
        """Takes what the host sent: a JSON list of [handle, kind, payload]. Unknown handles are ignored. Raises
        InternalError for what is no such list, and takes none of it."""
        for handle, kind, payload in _decoded(events) if events else ():
            if (future := self._futures.pop(handle, None)) is not None:
                if kind == "ok":
                    future.set_result(payload)
                else:
                    future.set_exception(error_from_data(payload))
            elif (stream := self._streams.get(handle)) is not None:
                stream.push(kind, payload)
                if kind != "part":
                    del self._streams[handle]

    def close(self) -> None:
        """The run is over: whoever still waits is cancelled, and nothing more is sent."""
        self._is_closed = True
        self._deferred.clear()
        waiting, self._futures = self._futures, {}
        for future in waiting.values():
            future.cancel()
        for stream in self._streams.values():
            stream.push("error", {"type": "Cancelled", "message": _OVER})
        self._streams.clear()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def num_open(self) -> int:
        """Calls that have not ended; 0 when nothing leaks."""
        return len(self._futures) + len(self._streams)

    def _send(self, op: Operation) -> int:
        if self._is_closed:
            raise RuntimeError(_OVER)
        if self._deferred:
            self._send_deferred()
        return self._submit(_encoded(op))

    def _send_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for op in deferred:
            self.post(op)

    def drop(self, answer: "_Answer") -> None:
        """Nobody waits for this answer any more."""
        if self._futures.pop(answer.handle, None) is None:
            return
        if answer.goes_on:
            answer.kept = self._futures[answer.handle] = answer.get_loop().create_future()
        else:
            self.post({"op": "cancel", "handle": answer.handle})


class _Answer(asyncio.Future[Any]):
    """What `issue` returns: it tells the port when the program stops waiting, because the work need not go on then."""

    __slots__ = ("goes_on", "handle", "kept", "port")
    port: Port
    handle: int
    goes_on: bool
    kept: "asyncio.Future[Any] | None"

    def cancel(self, msg: Any = None) -> bool:  # noqa: ANN401 (as asyncio has it)
        """As `Future.cancel`. Of a task that waits here, asyncio cancels what it waits for."""
        if not super().cancel(msg):
            return False
        self.port.drop(self)
        return True


def lasting(answer: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    """The answer, whose call is not cancelled when the program stops waiting for it: `kept` has what it comes to."""
    assert isinstance(answer, _Answer)
    answer.goes_on = True
    return answer


def kept(answer: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    """What the answer of a call that lasts comes to, now that nobody waits for it."""
    assert isinstance(answer, _Answer)
    return answer.kept or answer


class Stream:
    """The parts of one call, in order, and then its final payload. For one reader."""

    def __init__(self, port: Port, handle: int) -> None:
        self._port = port
        self.handle = handle
        self._parts: deque[Any] = deque()
        self._final: Any = None
        self._error: dict[str, Any] | None = None
        self._is_ended = False
        self._when_ended: Callable[[Any], None] | None = None
        self._arrived = asyncio.Event()

    def push(self, kind: str, payload: Any) -> None:  # noqa: ANN401 (JSON)
        """Called by the port with each answer."""
        if kind == "part":
            self._parts.append(payload)
        else:
            self._is_ended = True
            self._final, self._error = (payload, None) if kind == "ok" else (None, payload)
            if self._when_ended is not None and kind == "ok":
                self._when_ended(payload)
        self._arrived.set()

    async def next_part(self) -> Any:  # noqa: ANN401 (JSON)
        """The next part, or None when there are no more."""
        while not self._parts:
            if self._is_ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._parts.popleft()

    async def final(self) -> Any:  # noqa: ANN401 (JSON)
        """Waits for the end, dropping unread parts; the final payload, or its error."""
        while not self._is_ended:
            self._arrived.clear()
            await self._arrived.wait()
        if self._error is not None:
            raise error_from_data(self._error)
        return self._final

    def when_ended(self, act: Callable[[Any], None]) -> None:
        """`act` is called with the final payload once it is there; not if the call fails."""
        if self._is_ended and self._error is None:
            act(self._final)
        self._when_ended = act

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def tell(self, op: str, **fields: Any) -> None:  # noqa: ANN401 (JSON)
        """Issues a call about this one, whose answer nobody waits for."""
        if not self._is_ended:
            self._port.post({"op": op, "handle": self.handle, **fields})

    def interrupt(self) -> None:
        """Asks for an early end; the final payload says how far it came."""
        if not self._is_ended:
            self._port.post({"op": "interrupt", "handle": self.handle})


_port: ContextVar[Port] = ContextVar("loopwright_port")


def current_port() -> Port:
    """The port of the program that runs here. Raises RuntimeError outside one."""
    port = _port.get(None)
    if port is None:
        raise RuntimeError("no program is running here: start this file with `loopwright run`")
    return port


def set_current_port(port: Port) -> None:
    """Called by the sandbox before the program starts."""
    _port.set(port)


def _decoded(events: str) -> list[tuple[int, str, Any]]:
    try:
        decoded = _decode(events)[0]
        for handle, kind, _ in decoded:
            if not isinstance(handle, int) or kind not in ("ok", "error", "part"):
                raise ValueError(f"{handle!r}, {kind!r}")
    except (ValueError, TypeError, RecursionError) as error:
        raise InternalError(f"the host sent events that cannot be read: {error}") from None
    return decoded  # type: ignore[no-any-return]


def _encoded(op: Operation) -> str:
    """The call as JSON. Raises BadRequest for what JSON cannot hold, here, where the program's line is known."""
    try:
        text = _encode(op)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        surrogate = ord(error.object[error.start])
        raise BadRequest(f"{op['op']}: a text holds half of a surrogate pair, U+{surrogate:04X}") from None
    except (ValueError, TypeError) as error:  # what is no JSON, or a value inside itself
        found = json_fault(op, error)
        why = str(error) if found is None else ": ".join(found)
        raise BadRequest(f"{op['op']}: {why}", field="" if found is None else found[0]) from None
    return text
