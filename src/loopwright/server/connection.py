"""One client's connection: uvicorn's, with an end for clients that stop reading or sending. Never knows a request.

Made by uvicorn, as `http` configures it. When a client does not read, what is written stays in our memory. Beyond the
transport's high-water mark its answer waits; once it has read nothing for a while, the connection is cut, and with it
ends whatever was done for it. One that begins a request, or only connects, and then sends nothing is cut as late. One
that sends requests before it is answered is heard when it leaves, and all of them hear of it.
"""

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

STALL_S = 30.0
MAX_BEHIND = 16  # requests that are read behind the one that is answered

_log = logging.getLogger(__name__)


class Connection(HttpToolsProtocol):
    """A subclass says how long a client may read nothing while an answer waits for it, or send nothing of a request
    that is not whole."""

    stall_s = STALL_S
    _check: asyncio.TimerHandle | None = None
    _num_unread = 0
    _silence: asyncio.TimerHandle | None = None
    _open: tuple[RequestResponseCycle, ...] = ()  # requests that are not answered, in order

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_more()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._silence is not None:
            self._await_more()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_more()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._open = (*(one for one in self._open if not one.response_complete), self.cycle)
        if len(self._open) <= MAX_BEHIND + 1:
            self.flow.resume_reading()  # uvicorn would read no more, and so not see the client leave

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._await_nothing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._unwatch()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._await_nothing()
        for one in self._open:  # uvicorn tells the last one
            one.disconnected = not one.response_complete
            one.message_event.set()
        super().connection_lost(exc)

    def _await_more(self) -> None:
        self._await_nothing()
        self._silence = self.loop.call_later(self.stall_s, self._cut_silent)

    def _await_nothing(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _cut_silent(self) -> None:
        _log.info("a client sent nothing of a request for %s s: its connection is cut", self.stall_s)
        self.transport.abort()

    def _watch(self) -> None:
        self._num_unread = self.transport.get_write_buffer_size()
        self._check = self.loop.call_later(self.stall_s, self._look)

    def _unwatch(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _look(self) -> None:
        if self.transport.get_write_buffer_size() < self._num_unread:  # it reads, if slowly
            self._watch()
            return
        _log.warning("a client read nothing for %s s: its connection is cut", self.stall_s)
        self.transport.abort()


def stalling_after(stall_s: float) -> type[Connection]:
    """Connections that are cut after so long."""
    return type("Connection", (Connection,), {"stall_s": stall_s})
