"""Moves messages over one ZeroMQ socket, many a frame. Never looks inside a message. Used by clients and servers here.

A link runs on the event loop's thread, without tasks: the socket's descriptor wakes it. Messages sent in one turn of
the loop travel in one frame. What the other side has not taken waits in an outbox; `drained` lets a producer wait for
room, so that a slow peer holds up its own producers and nobody else. A peer that closes or dies is noticed at once: the
socket's monitor says that somebody left, and (on the binding side, where it does not say who) an empty frame to each
peer tells which.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, NewType, Protocol, TypeVar

import msgspec
import zmq

from loopwright.core.errors import Unavailable

Peer = NewType("Peer", bytes)
OnMessage = Callable[[Peer, bytes], None]
OnLost = Callable[[Peer], None]

BINDER = Peer(b"")  # what a connecting link calls its one peer
MAX_FRAME_BYTES = 1 << 20  # a frame is cut after the message that reaches this
MAX_OUTBOX_BYTES = 16 << 20  # above this, producers wait
MAX_QUEUED_FRAMES = 64  # a peer and direction, inside ZeroMQ; the rest waits in the outbox
MAX_FRAMES_PER_TURN = 64  # then the loop's other work has a turn
MAX_MESSAGE_BYTES = 64 << 20
MAX_WIRE_BYTES = MAX_MESSAGE_BYTES + 2 * MAX_FRAME_BYTES  # of a frame; a peer that sends more is cut off
CLOSING_MS = 500  # how long a closed socket may go on sending what it holds, in the background
PROBE_DELAYS_S = (0.0, 0.01, 0.1, 1.0)  # the monitor's word can come before the socket itself knows

log = logging.getLogger(__name__)
_encode_frame = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(list[bytes]).decode
_EMPTY_FRAME = _encode_frame([])


class Link:
    """One socket. `on_message` gets each message in order; `on_lost` is called once for a peer that has gone."""

    def __init__(self, socket: zmq.Socket[bytes], *, is_binder: bool, on_message: OnMessage, on_lost: OnLost) -> None:
        self._socket = socket
        self._is_binder = is_binder
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._outboxes: dict[Peer, _Outbox] = {} if is_binder else {BINDER: _Outbox()}
        self._is_pump_due = False
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._descriptors = (_number(socket, zmq.FD), _number(self._monitor, zmq.FD))
        self._loop.add_reader(self._descriptors[0], self._pump)
        self._loop.add_reader(self._descriptors[1], self._read_monitor)
        self._read_monitor()  # a descriptor wakes for news only after somebody has seen that there is none
        self._pump_soon()

    @classmethod
    def bind(cls, address: str, on_message: OnMessage, on_lost: OnLost) -> "Link":
        """The side that many peers connect to."""
        socket = _new_socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a peer that is gone or full is an error, not a silent drop
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise Unavailable(f"cannot listen on {address}: {error.strerror}") from error
        return cls(socket, is_binder=True, on_message=on_message, on_lost=on_lost)

    @classmethod
    def connect(cls, address: str, on_message: OnMessage, on_lost: OnLost) -> "Link":
        """The side with one peer, which need not be there yet."""
        socket = _new_socket(zmq.DEALER)
        socket.connect(address)
        return cls(socket, is_binder=False, on_message=on_message, on_lost=on_lost)

    @property
    def is_closed(self) -> bool:
        return bool(self._socket.closed)

    def send(self, peer: Peer, message: bytes) -> None:
        """Queues a message. To a peer that is gone it goes nowhere: `on_lost` has told or will tell."""
        outbox = self._outboxes.get(peer)
        if outbox is None:
            return
        outbox.add(message)
        self._pump_soon()

    def send_at_once(self, peer: Peer, message: bytes) -> None:
        """As `send`, without waiting for what else there may be for the peer in this turn of the loop."""
        self.send(peer, message)
        if (outbox := self._outboxes.get(peer)) is not None:
            self._flush_one(peer, outbox)  # what that may swallow the pump, which is due, finds

    def is_full(self, peer: Peer) -> bool:
        outbox = self._outboxes.get(peer)
        return outbox is not None and not outbox.has_room.is_set()

    async def drained(self, peer: Peer) -> None:
        """Waits until the peer's outbox has room; returns at once when the peer is gone."""
        if (outbox := self._outboxes.get(peer)) is not None:
            await outbox.has_room.wait()

    def drop(self, peer: Peer) -> None:
        """Forgets a peer and what waits for it, without a call of `on_lost`."""
        if (outbox := self._outboxes.pop(peer, None)) is not None:
            outbox.has_room.set()

    def close(self) -> None:
        """Sends what is queued as far as the peers take it, and closes. Closing twice is allowed."""
        if self.is_closed:
            return
        self._flush()
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        for peer in list(self._outboxes):
            self.drop(peer)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=CLOSING_MS)

    def _pump_soon(self) -> None:
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Takes what has come and sends what waits.

        The descriptor wakes only when something changes, and any use of the socket may swallow the change: so go on
        until the socket itself says that nothing is left."""
        self._is_pump_due = False
        for _ in range(MAX_FRAMES_PER_TURN):
            self._flush()
            if self.is_closed or not _has_input(self._socket):
                return
            self._take_frame()
        self._pump_soon()

    def _take_frame(self) -> None:
        parts = self._socket.recv_multipart(zmq.NOBLOCK)
        peer = Peer(parts[0]) if self._is_binder else BINDER
        try:
            (frame,) = parts[1:] if self._is_binder else parts
            messages = _decode_frame(frame)
        except (ValueError, msgspec.MsgspecError) as error:
            log.warning("dropped a malformed frame: %s", error)
            return
        if self._is_binder and peer not in self._outboxes:
            self._outboxes[peer] = _Outbox()
        for message in messages:
            if peer in self._outboxes:  # not once a message has made us drop the peer
                self._deliver(peer, message)

    def _deliver(self, peer: Peer, message: bytes) -> None:
        try:
            self._on_message(peer, message)
        except Exception:  # a fault over one message must not lose the others of its frame
            log.exception("a message could not be handled")

    def _flush(self) -> None:
        for peer, outbox in list(self._outboxes.items()):
            self._flush_one(peer, outbox)

    def _flush_one(self, peer: Peer, outbox: "_Outbox") -> None:
        while not self.is_closed and (frame := outbox.next_frame()) is not None:
            if not self._send_frame(peer, frame):
                return
            outbox.frame_sent()

    def _send_frame(self, peer: Peer, frame: bytes) -> bool:
        """Whether the socket took the frame."""
        try:
            self._socket.send_multipart([peer, frame] if self._is_binder else [frame], zmq.NOBLOCK)
        except zmq.Again:
            return False  # the socket wakes us when the peer has taken some
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lose(peer)
            return False
        return True

    def _read_monitor(self) -> None:
        has_left = False
        while not self._monitor.closed and _has_input(self._monitor):
            self._monitor.recv_multipart(zmq.NOBLOCK)
            has_left = True
        if not has_left:
            return
        if not self._is_binder:
            while not self.is_closed and _has_input(self._socket):  # its last messages come before the news
                self._take_frame()
            self._lose(BINDER)
            return
        for delay_s in PROBE_DELAYS_S:
            self._loop.call_later(delay_s, self._probe)

    def _probe(self) -> None:
        for peer, outbox in list(self._outboxes.items()):
            if not self.is_closed and outbox.next_frame() is None:
                self._send_frame(peer, _EMPTY_FRAME)
        self._pump_soon()  # finds the peers with a waiting frame, and whatever sending has swallowed

    def _lose(self, peer: Peer) -> None:
        if peer in self._outboxes:
            self.drop(peer)
            self._on_lost(peer)


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
        self._link = Link.bind(self._address, self._take, self._release)
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


class _Outbox:
    """What waits for one peer. Bounded by its producers, who wait for `has_room`."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._messages: deque[bytes] = deque()
        self._num_bytes = 0  # of messages and of the frame
        self._frame: bytes | None = None  # made of messages, not taken by the socket yet
        self._frame_message_bytes = 0

    def add(self, message: bytes) -> None:
        self._messages.append(message)
        self._num_bytes += len(message)
        if self._num_bytes > MAX_OUTBOX_BYTES:
            self.has_room.clear()

    def next_frame(self) -> bytes | None:
        if self._frame is None and self._messages:
            taken: list[bytes] = []
            num_bytes = 0
            while self._messages and num_bytes < MAX_FRAME_BYTES:
                taken.append(self._messages.popleft())
                num_bytes += len(taken[-1])
            self._frame, self._frame_message_bytes = _encode_frame(taken), num_bytes
        return self._frame

    def frame_sent(self) -> None:
        self._num_bytes -= self._frame_message_bytes
        self._frame = None
        if self._num_bytes <= MAX_OUTBOX_BYTES:
            self.has_room.set()


def _new_socket(kind: int) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(MAX_QUEUED_FRAMES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_WIRE_BYTES)
    return socket


def _has_input(socket: zmq.Socket[bytes]) -> bool:
    return bool(_number(socket, zmq.EVENTS) & zmq.POLLIN)


def _number(socket: zmq.Socket[bytes], option: int) -> int:
    value = socket.getsockopt(option)
    assert isinstance(value, int)
    return value
