"""Listening and stopping."""

import asyncio
import json
import os
import signal
import socket
from typing import Any

import httpx
import pytest
from eventually import eventually
from fake_runs import FakeRuns
from live_server import live_server

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.server.app import create_app
from loopwright.server.hosts import allowed_hosts, host_name
from loopwright.server.http import listen, serve

pytestmark = [pytest.mark.timeout(60)]


def test_a_busy_port_is_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable) as caught:
            listen("127.0.0.1", port)
    assert f"port {port}" in caught.value.message
    assert "--port" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("host", "port", "kind"),
    [("no.such.host.invalid", 8000, BadRequest), ("127.0.0.1", 99999, BadRequest), ("192.0.2.1", 8000, Unavailable)],
)
def test_an_address_that_is_not_ours_is_an_error(host: str, port: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        listen(host, port)


def test_answers_are_not_held_back_by_nagle_s_algorithm() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # what asyncio asks before it sets TCP_NODELAY


@pytest.mark.parametrize(
    ("header", "name"), [("a.b:80", "a.b"), ("A.B", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("", "")]
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_hosts_are_checked_on_loopback_only() -> None:
    assert "127.0.0.5" in (allowed_hosts("127.0.0.5") or ())
    assert "localhost" in (allowed_hosts("::1") or ())
    assert allowed_hosts("0.0.0.0") is None
    assert allowed_hosts("example.org") is None


@pytest.mark.anyio
async def test_a_signal_stops_the_server_and_lets_requests_end() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        asking = asyncio.create_task(live.http.post("/v1/chat/completions", json=body))
        await eventually(lambda: len(fake.started) == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: _is_refused(live.port))
        fake.started[0].finish()
        assert (await asking).json()["choices"][0]["message"]["content"] == "a"
        await live.serving  # returns, without an error
    assert fake.cancelled == []


@pytest.mark.anyio
async def test_a_second_signal_cancels_what_still_runs() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        asking = asyncio.create_task(live.http.post("/v1/chat/completions", json=body))
        await eventually(lambda: fake.num_reading == 1)
        os.kill(os.getpid(), signal.SIGINT)
        await eventually(lambda: _is_refused(live.port))
        os.kill(os.getpid(), signal.SIGINT)
        await live.serving
        assert fake.cancelled == ["run-0"]
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.anyio
async def test_requests_that_outlive_the_grace_are_cancelled_with_their_runs() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(create_app(fake), "127.0.0.1", 0, ready.set_result, grace_s=0))
    url = f"http://127.0.0.1:{await ready}/v1/runs"
    async with httpx.AsyncClient(trust_env=False) as client, client.stream("POST", url, json={"source": "x"}):
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert serving.cancelled()
        assert fake.cancelled == ["run-0"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/runs", {"source": "x"}, lambda last: last["error"]),
        ("/v1/responses", {"model": "tiny", "input": "x"}, lambda last: last["response"]["error"]),
        (
            "/v1/messages",
            {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
            lambda last: last["error"],
        ),
    ],
)
async def test_who_is_ended_by_a_stopping_server_is_told_so(
    path: str, body: Any, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(create_app(fake), "127.0.0.1", 0, ready.set_result, grace_s=0))
    async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{await ready}") as client:
        waits = asyncio.create_task(client.post(path, json={**body, "stream": False}))
        streams = asyncio.create_task(client.post(path, json={**body, "stream": True}))
        await eventually(lambda: fake.num_reading == 2)
        serving.cancel()
        whole, streamed = await waits, await streams
        assert (whole.status_code, streamed.status_code) == (503, 200)
        last = json.loads(streamed.text.rpartition("data: ")[2])
        for error in (whole.json()["error"], told(last)):
            assert error["message"].startswith("the server is stopping")
        await asyncio.gather(serving, return_exceptions=True)
    assert sorted(fake.cancelled) == ["run-0", "run-1"]
    assert "Traceback" not in caplog.text


def _is_refused(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except OSError:
        return True
