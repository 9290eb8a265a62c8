"""A server that hands its requests to another over a Unix socket: who leaves it leaves the other, at any moment."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fake_runs import FakeRuns

from loopwright.server.app import create_app
from loopwright.server.forwarding import Forwarding
from loopwright.server.http import listen_at, serve
from loopwright.transport.addresses import socket_folder

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

RUN = json.dumps({"source": "async def main(): pass"}).encode()
STREAM = json.dumps({"source": "async def main(): pass", "stream": True}).encode()


@asynccontextmanager
async def forwarding(fake: FakeRuns) -> AsyncIterator[int]:
    """The port of a server that sends all on to one over these runs."""
    with socket_folder() as folder:
        path = Path(folder) / "main"
        main = asyncio.create_task(serve(create_app(fake), "127.0.0.1", 0, listener=listen_at(path), ready=no_port))
        front = Forwarding(create_app(FakeRuns()), path, here=())
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(front, "127.0.0.1", 0, port.set_result))
        try:
            yield await port
        finally:
            for task in (serving, main):
                task.cancel()
            await asyncio.gather(serving, main, return_exceptions=True)
            await front.close()


def no_port(_: Any) -> None:
    """A Unix socket has none."""


def head(num_bytes: int) -> bytes:
    return (
        b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % num_bytes
    )


@pytest.mark.parametrize("is_aborted", [False, True])
@pytest.mark.parametrize(
    "sent",
    [b"POST /v1/runs HT", head(9_000_000)[:-2], head(9_000_000), head(9_000_000) + b"[" * 300_000, head(80) + b"{"],
    ids=["part of a head", "all but the end of it", "a head", "much of a body", "little of one"],
)
async def test_who_leaves_in_the_midst_of_a_request_leaves_nothing(
    sent: bytes, is_aborted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeRuns()
    async with forwarding(fake) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        for _ in range(20):  # so that some of it has come
            await asyncio.sleep(0)
        writer.transport.abort() if is_aborted else writer.close()
        assert b"200 OK" in await asked(port)
    assert fake.started == []
    assert caplog.text == ""


@pytest.mark.parametrize("body", [RUN, STREAM], ids=["whole", "streamed"])
@pytest.mark.parametrize("text", ["", "some"])
async def test_who_leaves_while_a_run_is_under_way_ends_it(
    body: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeRuns(lambda run: run.text(text))
    async with forwarding(fake) as port:
        for behind in (b"", head(9)[:20]):
            fake.by_id.clear()
            fake.cancelled.clear()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(len(body)) + body + behind)
            await eventually(lambda: fake.num_reading == 1)
            writer.close()
            await eventually(lambda: fake.cancelled == ["run-0"])
            assert b"200 OK" in await asked(port)
    assert caplog.text == ""


async def asked(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer
