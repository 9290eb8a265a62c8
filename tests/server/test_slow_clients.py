"""A client that stops reading: its answer waits, nothing is written for it beyond a bound, and in the end it is cut off
with its run. One that reads again in time gets everything, in fewer chunks."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from eventually import eventually
from fake_runs import FakeRun, FakeRuns

from loopwright.core.clock import FakeClock
from loopwright.server.app import create_app
from loopwright.server.connection import Connection
from loopwright.server.http import serve

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HI = [{"role": "user", "content": "x"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
}
BIG = "0123456789" * 10_000
NUM_BIG = 120  # more than all buffers between the two ends hold
NEVER_S = 1e6


@asynccontextmanager
async def served(fake: FakeRuns, stall_s: float) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    app = create_app(fake, clock=FakeClock(1234.5))
    serving = asyncio.create_task(serve(app, "127.0.0.1", 0, port.set_result, stall_s=stall_s))
    try:
        yield await port
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def asking(port: int, path: str = "/v1/chat/completions") -> AsyncIterator[asyncio.StreamReader]:
    """A client that has sent its request and reads nothing by itself: its own buffer is small."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    payload = json.dumps({"model": "tiny", "stream": True, **ROUTES[path]}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    writer.write(
        head.encode() + f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload
    )
    try:
        yield reader
    finally:
        writer.transport.abort()


async def talk(run: FakeRun, number: int = NUM_BIG) -> None:
    for _ in range(number):
        run.text(BIG)
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ROUTES)
async def test_a_client_that_reads_nothing_is_cut_off_with_its_run(path: str) -> None:
    fake = FakeRuns()
    async with served(fake, 0.05) as port, asking(port, path) as reader:
        await eventually(lambda: len(fake.started) == 1)
        await talk(fake.started[0])
        await eventually(lambda: fake.cancelled == ["run-0"])
        await eventually(lambda: fake.num_reading == 0)
        told = await reader.read()
        assert b"[DONE]" not in told
        assert not told.endswith(b"0\r\n\r\n")


async def test_what_waits_for_a_client_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[Connection] = []
    pause = Connection.pause_writing

    def noted_pause(self: Connection) -> None:
        paused.append(self)
        pause(self)

    monkeypatch.setattr(Connection, "pause_writing", noted_pause)
    fake = FakeRuns()
    async with served(fake, NEVER_S) as port, asking(port):
        await eventually(lambda: len(fake.started) == 1)
        await talk(fake.started[0])
        await eventually(lambda: bool(paused))
        waiting = paused[0].transport.get_write_buffer_size()
        await talk(fake.started[0])
        assert paused[0].transport.get_write_buffer_size() == waiting < 300 * len(BIG)
        assert fake.cancelled == []


def texts_of(path: str, told: str) -> list[str]:
    """Of a stream's events."""
    events = [json.loads(line[6:]) for line in told.split("\n") if line.startswith("data: {")]
    if path == "/v1/chat/completions":
        return [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
    if path == "/v1/responses":
        return [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    return [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]


@pytest.mark.parametrize("path", ROUTES)
async def test_one_that_reads_again_in_time_gets_every_text(path: str) -> None:
    fake = FakeRuns()
    async with served(fake, NEVER_S) as port, asking(port, path) as reader:
        await eventually(lambda: len(fake.started) == 1)
        await talk(fake.started[0])
        fake.started[0].finish({})
        told = await reader.read()
    texts = texts_of(path, _dechunked(told))
    assert "".join(texts) == BIG * NUM_BIG
    assert len(texts) < NUM_BIG
    assert fake.cancelled == []


async def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    """Looked at while its answer waits, it has taken something since the last look."""

    class Transport:
        def __init__(self) -> None:
            self.sizes = [900, 800, 700, 700]
            self.was_aborted = False

        def get_write_buffer_size(self) -> int:
            return self.sizes.pop(0)

        def abort(self) -> None:
            self.was_aborted = True

    timers: list[Any] = []

    class Loop:
        def call_later(self, delay_s: float, look: Any) -> asyncio.Handle:
            timers.append((delay_s, look))
            return asyncio.Handle(look, (), asyncio.get_running_loop())

    connection = Connection.__new__(Connection)
    connection.transport, connection.loop = Transport(), Loop()  # type: ignore[assignment]
    connection._watch()
    timers[0][1]()
    assert (len(timers), connection.transport.was_aborted) == (2, False)  # type: ignore[attr-defined]
    timers[1][1]()
    assert (len(timers), connection.transport.was_aborted) == (2, True)  # type: ignore[attr-defined]
    assert {delay_s for delay_s, _ in timers} == {30.0}


def _dechunked(told: bytes) -> str:
    parts: list[bytes] = []
    place = told.index(b"\r\n\r\n") + 4
    while place < len(told):
        end = told.index(b"\r\n", place)
        size = int(told[place:end], 16)
        parts.append(told[end + 2 : end + 2 + size])
        place = end + 4 + size
    return b"".join(parts).decode()


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n"
)


@pytest.mark.parametrize("sent", [b"", b"POST /v1", HEAD, HEAD + b'{"model":'])
async def test_a_client_that_never_ends_its_request_is_cut_off(sent: bytes) -> None:
    fake = FakeRuns()
    async with served(fake, 0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        told = b""
        with suppress(ConnectionResetError):
            told = await reader.read()
        assert told == b""
        writer.close()
    assert fake.started == []


async def test_nothing_more_is_awaited_of_a_client_whose_request_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Connection] = []
    make = Connection.connection_made

    def noted(self: Connection, transport: asyncio.Transport) -> None:
        made.append(self)
        make(self, transport)

    monkeypatch.setattr(Connection, "connection_made", noted)
    fake = FakeRuns()
    async with served(fake, NEVER_S) as port, asking(port):
        await eventually(lambda: len(fake.started) == 1)
        assert [one._silence for one in made] == [None]
