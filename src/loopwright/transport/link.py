"""Moves messages over Unix sockets, many a frame. Never looks inside a message. Used by clients and servers here.

A link runs on the event loop's thread, over asyncio's own transports: a frame is its length and a list of messages.
Messages sent in one turn of the loop travel in one frame, unless one is to leave at once. What the other side has not
taken waits in the transport; `drained` lets a producer wait for room, so that a slow peer holds up its own producers
and nobody else. A peer that closes or dies is noticed by the end of its stream, behind its last message.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Generic, NewType, Protocol, TypeVar

import msgspec

from loopwright.core.errors import Unavailable

Peer = NewType("Peer", int)
OnMessage = Callable[[Peer, bytes], None]
OnLost = Callable[[Peer], None]

BINDER = Peer(0)  # what a connecting link calls its one peer
MAX_FRAME_BYTES = 1 << 20  # a frame is cut after the message that reaches this
MAX_OUTBOX_BYTES = 16 << 20  # above this, producers wait
MAX_MESSAGE_BYTES = 64 << 20
MAX_WIRE_BYTES = MAX_MESSAGE_BYTES + 2 * MAX_FRAME_BYTES  # of a frame; a peer that announces more is cut off
CLOSING_S = 0.5  # how long a closed connection may go on sending what it holds
RETRY_S = (0.005, 0.1)  # between two attempts to connect: at first, and at most
BACKLOG = 1024  # connections that wait to be accepted
HEADER_BYTES = 4

log = logging.getLogger(__name__)
_encode_frame = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(list[bytes]).decode


class Link:
    """A socket that listens and those that came of it, or one that connects. `on_message` gets each message, those of a
    peer in order; `on_lost` is called once for a peer that has gone."""

    def __init__(self, on_message: OnMessage, on_lost: OnLost) -> None:
        self.is_closed = False
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Peer, _Connection] = {}
        self._unsent: dict[Peer, _Connection] = {}  # with messages of this turn
        self._server: asyncio.Server | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def listen(self, address: str) -> None:
        """Makes it the side that many peers connect to. `address` is a path; a socket that was left there is replaced.
        Raises Unavailable."""
        numbers = count(BINDER + 1)
        try:
            self._server = await self._loop.create_unix_server(
                lambda: _Connection(self, Peer(next(numbers))), address, backlog=BACKLOG
            )
        except OSError as error:
            raise Unavailable(f"cannot listen on {address}: {error.strerror or error}") from error

    @classmethod
    def connect(cls, address: str, on_message: OnMessage, on_lost: OnLost) -> "Link":
        """The side with one peer, which need not be there yet. What it is sent until then waits."""
        link = cls(on_message, on_lost)
        link.add(_Connection(link, BINDER))
        link._connecting = link._loop.create_task(link._connect(address))
        return link

    def send(self, peer: Peer, message: bytes) -> None:
        """Queues a message. To a peer that is gone it goes nowhere: `on_lost` has told or will tell."""
        if (connection := self._connections.get(peer)) is None:
            return
        connection.add(message)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent[peer] = connection

    def send_at_once(self, peer: Peer, message: bytes) -> None:
        """As `send`, without waiting for what else there may be for the peer in this turn of the loop."""
        if (connection := self._connections.get(peer)) is not None:
            connection.add(message)
            connection.flush()

    def is_full(self, peer: Peer) -> bool:
        connection = self._connections.get(peer)
        return connection is not None and not connection.has_room.is_set()

    async def drained(self, peer: Peer) -> None:
        """Waits until the peer has room; returns at once when the peer is gone."""
        if (connection := self._connections.get(peer)) is not None:
            await connection.has_room.wait()

    def drop(self, peer: Peer) -> None:
        """Ends the connection to a peer, which gets what it was sent before, without a call of `on_lost`."""
        if (connection := self._connections.pop(peer, None)) is not None:
            connection.close()

    def close(self) -> None:
        """Sends what is queued as far as the peers take it, and closes. Closing twice is allowed."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._server is not None:
            self._server.close()
        for peer in list(self._connections):
            self.drop(peer)

    async def _connect(self, address: str) -> None:
        (connection,) = self._connections.values()
        delay_s, max_delay_s = RETRY_S
        while True:
            try:
                await self._loop.create_unix_connection(lambda: connection, address)
            except OSError:  # nobody listens there, or too many want to connect at once
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, max_delay_s)
            else:
                return

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for connection in unsent.values():
            connection.flush()

    # For connections

    def add(self, connection: "_Connection") -> None:
        self._connections[connection.peer] = connection

    def deliver(self, peer: Peer, message: bytes) -> None:
        try:
            self._on_message(peer, message)
        except Exception:  # a fault over one message must not lose the others of its frame
            log.exception("a message could not be handled")

    def lost(self, peer: Peer) -> None:
        if self._connections.pop(peer, None) is not None:
            self._on_lost(peer)


class _Connection(asyncio.Protocol):
    """The stream to one peer, from before it is there until it has gone."""

    def __init__(self, link: Link, peer: Peer) -> None:
        self.peer = peer
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._is_over = False  # nothing more is taken from it, or given to it
        self._messages: list[bytes] = []  # to be sent
        self._num_bytes = 0  # of these
        self._rest = bytearray()  # what has come of a frame that is not whole

    # Out

    def add(self, message: bytes) -> None:
        self._messages.append(message)
        self._num_bytes += len(message)
        if self._num_bytes > MAX_OUTBOX_BYTES:
            self.has_room.clear()

    def flush(self) -> None:
        """Gives the socket all messages, and the transport what it does not take."""
        if self._transport is None or not self._messages:
            return
        messages, self._messages = self._messages, []
        frame: list[bytes] = []
        num_bytes, self._num_bytes = 0, 0
        if self._transport.is_closing():  # the peer is gone, and `connection_lost` comes in the next turn
            return
        for message in messages:
            frame.append(message)
            num_bytes += len(message)
            if num_bytes >= MAX_FRAME_BYTES:
                self._write(self._transport, frame)
                frame, num_bytes = [], 0
        if frame:
            self._write(self._transport, frame)
        if self._transport.get_write_buffer_size() <= MAX_OUTBOX_BYTES:
            self.has_room.set()

    def close(self) -> None:
        """Has it end when what was sent is taken, or soon."""
        self.flush()
        self._is_over = True
        self.has_room.set()
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(CLOSING_S, self._transport.abort)

    def _write(self, transport: asyncio.Transport, messages: list[bytes]) -> None:
        encoded = _encode_frame(messages)
        transport.write(len(encoded).to_bytes(HEADER_BYTES, "little") + encoded)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_over or self._link.is_closed:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_OUTBOX_BYTES, low=MAX_OUTBOX_BYTES)
        self._link.add(self)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self._is_over:
            self._take_last_words()
        self._is_over = True
        self.has_room.set()
        self._link.lost(self.peer)

    def pause_writing(self) -> None:
        self.has_room.clear()

    def resume_writing(self) -> None:
        self.has_room.set()

    def data_received(self, data: bytes) -> None:
        whole: bytes | bytearray = data
        if self._rest:
            self._rest += data
            whole = self._rest
        with memoryview(whole) as view:
            num_taken = self._take_frames(view)
            if num_taken or whole is data:
                self._rest = bytearray(view[num_taken:])

    # In

    def _take_frames(self, view: memoryview) -> int:
        """Delivers what is in whole frames; how many bytes they are."""
        begin = 0
        while not self._is_over and begin + HEADER_BYTES <= len(view):
            body = begin + HEADER_BYTES
            num_bytes = int.from_bytes(view[begin:body], "little")
            if num_bytes > MAX_WIRE_BYTES:
                self._cut_off(num_bytes)
                break
            if body + num_bytes > len(view):
                break
            begin = body + num_bytes
            try:
                messages = _decode_frame(view[body:begin])
            except (ValueError, msgspec.MsgspecError) as error:
                log.warning("dropped a malformed frame: %s", error)
                continue
            for message in messages:
                if not self._is_over:  # as a message may make it
                    self._link.deliver(self.peer, message)
        return begin

    def _cut_off(self, num_bytes: int) -> None:
        assert self._transport is not None
        log.warning(
            "cut off a peer that announced a frame of %d bytes; at most %d are taken", num_bytes, MAX_WIRE_BYTES
        )
        self._transport.abort()
        self._is_over = True

    def _take_last_words(self) -> None:
        """What the peer said before it went, if that was noticed in writing to it."""
        assert self._transport is not None
        with suppress(OSError):
            while data := os.read(self._transport.get_extra_info("socket").fileno(), MAX_FRAME_BYTES):
                self.data_received(data)


class ConnectedClient(Protocol):
    """What a server keeps for one of its clients."""

    name: str

    def leave(self) -> None:
        """Ends all that it still has."""
        ...


ClientT = TypeVar("ClientT", bound=ConnectedClient)


class LinkServer(Generic[ClientT]):
    """One listening address, any number of clients. What a message means is its subclass's to say, in `_take`."""

    def __init__(self, address: str, new_client: Callable[[], ClientT]) -> None:
        self._address = address
        self._new_client = new_client
        self._clients: dict[Peer, ClientT] = {}

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Listens, calls `ready`, and goes on until cancelled. Raises Unavailable when it cannot listen."""
        self._link = Link(self._take, self._release)
        await self._link.listen(self._address)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                ready()
                await asyncio.Event().wait()
        finally:
            for peer in list(self._clients):
                self._release(peer)
            self._link.close()

    def peer_died(self, name: str) -> None:
        """For whoever watches the clients' processes; the socket notices by itself as well."""
        for peer, client in list(self._clients.items()):
            if client.name == name:
                self._dismiss(peer)

    def _take(self, peer: Peer, payload: bytes) -> None:
        raise NotImplementedError

    def _client(self, peer: Peer) -> ClientT:
        if (client := self._clients.get(peer)) is None:
            client = self._clients[peer] = self._new_client()
        return client

    def _dismiss(self, peer: Peer) -> None:
        """A client that says goodbye, or is known to be dead."""
        self._link.drop(peer)
        self._release(peer)

    def _release(self, peer: Peer) -> None:
        if (client := self._clients.pop(peer, None)) is not None:
            client.leave()
