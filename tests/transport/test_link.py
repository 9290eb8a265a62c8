"""A link by itself: frames however they come, peers that come early, go, send too much or take nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from child_process import python_process
from eventually import eventually
from raw_peer import RawPeer, frame, with_header

from loopwright.core.errors import Unavailable
from loopwright.transport import link as link_module
from loopwright.transport.link import BINDER, Link, Peer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Told:
    """What a link told of: messages by peer, and who has gone."""

    def __init__(self) -> None:
        self.messages: list[tuple[Peer, bytes]] = []
        self.lost: list[Peer] = []
        self.link = Link(self._take, self.lost.append)

    @property
    def texts(self) -> list[bytes]:
        return [message for _, message in self.messages]

    @property
    def peers(self) -> list[Peer]:
        """Those that have said something, in the order in which they began."""
        return list(dict.fromkeys(peer for peer, _ in self.messages))

    def _take(self, peer: Peer, message: bytes) -> None:
        self.messages.append((peer, message))
        if message == b"raise":
            raise ValueError(message)
        if message == b"drop me":
            self.link.drop(peer)
        if message == b"close":
            self.link.close()


@pytest.fixture
def num_attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often links have tried to connect, with little time in between."""
    attempts: list[str] = []
    connect = asyncio.SelectorEventLoop.create_unix_connection

    async def noted(loop: asyncio.SelectorEventLoop, *arguments: object) -> object:
        attempts.append("one")
        return await connect(loop, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.SelectorEventLoop, "create_unix_connection", noted)
    monkeypatch.setattr(link_module, "RETRY_S", (0.0001, 0.001))
    return lambda: len(attempts)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@asynccontextmanager
async def listening(address: str) -> AsyncIterator[Told]:
    told = Told()
    await told.link.listen(address)
    try:
        yield told
    finally:
        told.link.close()


@asynccontextmanager
async def connecting(address: str) -> AsyncIterator[tuple[Link, Told]]:
    told = Told.__new__(Told)
    told.messages, told.lost = [], []
    told.link = Link.connect(address, told._take, told.lost.append)
    try:
        yield told.link, told
    finally:
        told.link.close()


async def test_messages_of_each_side_arrive_in_order_whatever_their_size(address: str) -> None:
    sizes = (0, 1, 3, 70_000, 300_000, 1 << 20, 5 << 20, 2)
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    async with listening(address) as told, connecting(address) as (link, back):
        for message in messages:
            link.send(BINDER, message)
        await eventually(lambda: len(told.messages) == len(messages))
        (peer,) = told.peers
        for message in messages:
            told.link.send(peer, message)
        await eventually(lambda: len(back.messages) == len(messages))
    assert told.texts == back.texts == messages
    assert told.lost == back.lost == []


async def test_frames_arrive_wherever_they_are_cut(address: str) -> None:
    stream = frame(b"one", b"two") + frame() + frame(b"three") + frame(b"4" * 300, b"five")
    async with listening(address) as told:
        peer = RawPeer(address)
        await eventually(lambda: bool(told.link._connections))
        (connection,) = told.link._connections.values()
        cuts = [(cut, len(stream)) for cut in range(1, len(stream))] + [(1, 3, 8, 9, len(stream))]
        for cut in [*cuts, range(1, len(stream) + 1)]:  # at last byte by byte
            for begin, end in pairwise([0, *cut]):
                connection.data_received(stream[begin:end])
            assert told.texts == [b"one", b"two", b"three", b"4" * 300, b"five"], f"cut at {cut}"
            told.messages.clear()
        peer.close()


async def test_what_is_sent_in_one_turn_is_one_frame_and_what_is_sent_at_once_is_there_before(address: str) -> None:
    async with listening(address) as told:
        peer = RawPeer(address)
        peer.send_frame(frame(b"hello")[4:])
        await eventually(lambda: bool(told.messages))
        (number,) = told.peers
        told.link.send(number, b"a")
        told.link.send_at_once(number, b"b")
        assert peer.read_messages(2) == [b"a", b"b"], "no turn of the loop in between"
        told.link.send(number, b"c")
        told.link.send(number, b"d")
        peer.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.socket.recv(1)
        peer.socket.settimeout(30)
        await asyncio.sleep(0)
        assert peer.read_messages(2) == [b"c", b"d"]
        peer.close()


async def test_a_large_turn_is_cut_into_frames(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_FRAME_BYTES", 100)
    sizes: list[int] = []
    encode = link_module._encode_frame
    monkeypatch.setattr(link_module, "_encode_frame", lambda found: (sizes.append(len(found)), encode(found))[1])
    async with listening(address) as told, connecting(address) as (link, _):
        for number in range(10):
            link.send(BINDER, bytes([number]) * 40)
        await eventually(lambda: len(told.messages) == 10)
    assert sizes == [3, 3, 3, 1]
    assert told.texts == [bytes([number]) * 40 for number in range(10)]


async def test_a_peer_that_announces_too_much_is_cut_off_and_nobody_else(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_WIRE_BYTES", 1000)
    async with listening(address) as told, connecting(address) as (link, _):
        link.send(BINDER, b"before")
        await eventually(lambda: len(told.messages) == 1)
        hostile = RawPeer(address)
        hostile.socket.sendall(frame(b"fits") + (1001).to_bytes(4, "little"))
        assert await asyncio.to_thread(hostile.is_cut_off)
        await eventually(lambda: len(told.lost) == 1)
        link.send(BINDER, b"x" * 990)
        await eventually(lambda: len(told.messages) == 3)
        assert told.texts == [b"before", b"fits", b"x" * 990]
        assert told.lost == [told.peers[1]]
        hostile.close()


async def test_a_malformed_frame_is_dropped_and_the_next_one_counts(address: str) -> None:
    async with listening(address) as told:
        peer = RawPeer(address)
        for body in (b"", b"\xff", b"\x93", b"\x91\xa1x", b"\x91\xc4\x09short"):
            peer.socket.sendall(with_header(body))
        peer.socket.sendall(frame(b"right"))
        await eventually(lambda: told.texts == [b"right"])
        assert told.lost == []
        peer.close()


async def test_one_that_ends_in_the_midst_of_a_frame_is_lost_with_what_it_had_begun_to_say(address: str) -> None:
    async with listening(address) as told:
        peer = RawPeer(address)
        peer.socket.sendall(frame(b"whole") + frame(b"begun")[:-1])
        peer.close()
        await eventually(lambda: bool(told.lost))
        assert told.texts == [b"whole"]
        assert told.lost == told.peers
        told.link.send(told.lost[0], b"into the void")
        assert not told.link.is_full(told.lost[0])
        await told.link.drained(told.lost[0])


async def test_a_fault_over_one_message_loses_no_other(address: str) -> None:
    async with listening(address) as told:
        peer = RawPeer(address)
        peer.socket.sendall(frame(b"raise", b"next") + frame(b"last"))
        await eventually(lambda: told.texts == [b"raise", b"next", b"last"])
        peer.close()


@pytest.mark.parametrize("last", [b"drop me", b"close"])
async def test_nothing_is_taken_of_a_peer_behind_the_message_that_has_it_dropped(address: str, last: bytes) -> None:
    async with listening(address) as told:
        peer = RawPeer(address)
        peer.socket.sendall(frame(b"first", last, b"too late") + frame(b"later still"))
        assert await asyncio.to_thread(peer.is_cut_off)
        assert told.texts == [b"first", last]
        assert told.lost == [], "nobody need be told of what it did itself"
        assert not told.link._connections
        peer.close()


async def test_one_may_connect_before_the_other_side_is_there(address: str, num_attempts: Callable[[], int]) -> None:
    async with connecting(address) as (link, back):
        link.send(BINDER, b"early")
        link.send_at_once(BINDER, b"bird")
        await eventually(lambda: num_attempts() > 3)
        async with listening(address) as told:
            await eventually(lambda: told.texts == [b"early", b"bird"])
            told.link.send(told.peers[0], b"worm")
            await eventually(lambda: back.texts == [b"worm"])


async def test_a_socket_that_nobody_listens_on_any_more_is_replaced(
    address: str, num_attempts: Callable[[], int]
) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(address)
    async with connecting(address) as (link, _):
        link.send(BINDER, b"here")
        await eventually(lambda: num_attempts() > 1)
        async with listening(address) as told:
            await eventually(lambda: told.texts == [b"here"])


async def test_where_nobody_can_listen_is_an_error_that_names_it(address: str) -> None:
    await asyncio.to_thread(Path(address).write_text, "a file")
    with pytest.raises(Unavailable, match=f"cannot listen on {address}"):
        await Told().link.listen(address)


async def test_a_link_that_is_closed_before_it_is_connected_leaves_nothing(address: str) -> None:
    async with connecting(address) as (link, back):
        link.send(BINDER, b"never")
        link.close()
        link.close()
        async with listening(address) as told:
            await asyncio.gather(link._connecting, return_exceptions=True)
            assert link._connecting is not None
            assert link._connecting.cancelled(), "it looks for nobody any more"
            assert not told.messages
        assert not back.lost


async def test_many_peers_at_once_are_told_apart(address: str) -> None:
    async with listening(address) as told:
        clients = [Link.connect(address, lambda *_: None, lambda _: None) for _ in range(60)]
        for number, client in enumerate(clients):
            client.send(BINDER, b"%d" % number)
        await eventually(lambda: len(told.messages) == 60)
        assert len(told.peers) == 60
        name_of = dict(told.messages)
        for client in clients[::2]:
            client.close()
        await eventually(lambda: len(told.lost) == 30)
        assert {int(name_of[peer]) for peer in told.lost} == set(range(0, 60, 2))
        for client in clients[1::2]:
            client.close()


async def test_a_peer_that_takes_nothing_is_full_and_holds_up_only_itself(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_OUTBOX_BYTES", 1 << 16)
    async with listening(address) as told, connecting(address) as (brisk, heard):
        brisk.send(BINDER, b"brisk")
        await eventually(lambda: len(told.messages) == 1)
        slow = RawPeer(address)
        slow.send_frame(frame(b"slow")[4:])
        await eventually(lambda: len(told.messages) == 2)
        quick, full = told.peers
        num_sent = 0  # more than what the system holds and we do together would be wrong
        while not told.link.is_full(full) and num_sent < 200:
            told.link.send(full, b"%07d" % num_sent + b"x" * 9993)
            num_sent += 1
            await asyncio.sleep(0)
        assert told.link.is_full(full)
        waiting = asyncio.create_task(told.link.drained(full))
        assert not told.link.is_full(quick)
        told.link.send(quick, b"still here")
        await eventually(lambda: heard.texts == [b"still here"])
        assert not waiting.done()
        taken = await asyncio.to_thread(slow.read_messages, num_sent)
        assert [int(one[:7]) for one in taken] == list(range(num_sent))
        await waiting
        assert not told.link.is_full(full)
        slow.close()


async def test_who_waits_for_room_goes_on_when_the_peer_is_gone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_OUTBOX_BYTES", 1 << 16)
    async with listening(address) as told:
        for leave in (RawPeer.close, lambda _: told.link.drop(max(told.peers))):
            slow = RawPeer(address)
            slow.send_frame(frame(b"slow")[4:])
            before = len(told.messages)
            await eventually(lambda before=before: len(told.messages) > before)
            peer = max(told.peers)
            for _ in range(100):
                told.link.send(peer, b"x" * 10_000)
            await asyncio.sleep(0)
            assert told.link.is_full(peer)
            waiting = asyncio.create_task(told.link.drained(peer))
            await asyncio.sleep(0)
            leave(slow)
            await waiting
            slow.close()


async def test_what_was_sent_before_an_end_arrives_and_one_that_does_not_take_it_holds_up_nobody_for_long(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "CLOSING_S", 0.01)
    async with listening(address) as told:
        quick, slow = RawPeer(address), RawPeer(address)
        quick.send_frame(frame(b"quick")[4:])
        await eventually(lambda: len(told.messages) == 1)
        slow.send_frame(frame(b"slow")[4:])
        await eventually(lambda: len(told.messages) == 2)
        told.link.send(told.peers[0], b"goodbye")
        told.link.send(told.peers[1], b"x" * (1 << 20))
        gone = told.link._connections[told.peers[1]]
        told.link.close()
        assert quick.read_messages(1) == [b"goodbye"]
        assert await asyncio.to_thread(quick.is_cut_off)
        await eventually(lambda: gone._transport is not None and gone._transport.get_write_buffer_size() == 0)
        quick.close()
        slow.close()


async def test_last_words_are_heard_by_who_finds_out_in_writing(address: str) -> None:
    async with listening(address) as told:
        peer = RawPeer(address)
        peer.send_frame(frame(b"hello")[4:])
        await eventually(lambda: len(told.messages) == 1)
        peer.send_frame(frame(b"my last words")[4:])
        peer.close()
        told.link.send_at_once(told.peers[0], b"how are you?")  # fails, before anything was read
        await eventually(lambda: bool(told.lost))
        assert told.texts == [b"hello", b"my last words"]


SPEAKER = """
import asyncio, sys
from loopwright.transport.link import BINDER, Link
async def main():
    link = Link.connect(sys.argv[1], lambda *_: None, lambda _: None)
    link.send(BINDER, b"alive")
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_much_that_is_sent_at_once_to_one_that_has_gone_is_no_news(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(address) as told:
        raw = RawPeer(address)
        raw.send_frame(frame(b"hello")[4:])
        await eventually(lambda: told.texts == [b"hello"])
        (peer,) = told.peers
        raw.close()
        for _ in range(10):  # before the loop has seen the end
            told.link.send_at_once(peer, b"x")
        await eventually(lambda: told.lost == [peer])
    assert not caplog.records


async def test_one_that_is_killed_is_lost_at_once(address: str) -> None:
    async with listening(address) as told:
        with python_process(SPEAKER, address) as process:
            await eventually(lambda: told.texts == [b"alive"])
            process.kill()
            await eventually(lambda: told.lost == told.peers)
