"""A client that goes takes its run with it: queued, before the first text, streaming, or waiting for the whole."""

import asyncio
import re
from typing import Any

import httpx
import pytest
from eventually import eventually
from fake_runs import FakeRun, FakeRuns
from live_server import Live, live_server

from loopwright.core.runs import RunSpec
from loopwright.server.connection import MAX_BEHIND

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HI: list[Any] = [{"role": "user", "content": "Hi"}]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": HI, "max_tokens": 9}),
]


async def hang_up_after(live: Live, path: str, body: dict[str, Any], condition: Any, behind: bytes = b"") -> None:
    """Sends a request, and what is to be `behind` it, and closes its socket once the condition holds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(request_of(path, body) + behind)
    await eventually(condition)
    writer.close()
    del reader


def request_of(path: str, body: dict[str, Any]) -> bytes:
    payload = httpx.Request("POST", "http://x", json=body).content
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("script", [None, lambda run: run.text("some text")])
@pytest.mark.parametrize(("path", "asked"), ROUTES)
async def test_a_request_whose_client_goes_is_cancelled(
    path: str, asked: dict[str, Any], is_streamed: bool, script: Any
) -> None:
    fake = FakeRuns(script)
    async with live_server(fake) as live:
        body = {"model": "tiny", **asked, "stream": is_streamed}
        await hang_up_after(live, path, body, lambda: len(fake.started) == 1)
        await eventually(lambda: fake.cancelled == ["run-0"])
        await eventually(lambda: fake.started[0].num_readers == 0)


CHAT = {"model": "tiny", "messages": HI}
BEHIND = {
    "a question": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a chat": request_of("/v1/chat/completions", CHAT),
    "many": request_of("/v1/chat/completions", CHAT) * MAX_BEHIND,
    "part of a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: lo",
    "part of a body": request_of("/v1/chat/completions", CHAT)[:-9],
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("behind", BEHIND.values(), ids=list(BEHIND))
async def test_a_request_is_cancelled_and_those_behind_it_never_start_when_their_client_goes(
    behind: bytes, is_streamed: bool
) -> None:
    fake = FakeRuns()
    async with live_server(fake) as live:
        body = {**CHAT, "stream": is_streamed}
        await hang_up_after(live, "/v1/chat/completions", body, lambda: len(fake.started) == 1, behind)
        await eventually(lambda: fake.cancelled == ["run-0"])
        assert (await live.http.get("/health")).status_code == 200
        assert len(fake.started) == 1


async def test_requests_that_are_sent_before_the_first_is_answered_are_answered_in_order() -> None:
    fake = FakeRuns()
    async with live_server(fake) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        num_sent = MAX_BEHIND + 4
        writer.write(request_of("/v1/chat/completions", CHAT) * num_sent)
        for number in range(num_sent):
            await eventually(lambda number=number: len(fake.started) == number + 1)
            fake.started[-1].text(f"number {number}")
            fake.started[-1].finish()
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = re.findall(rb"content-length: (\d+)", head)
            assert f"number {number}".encode() in await reader.readexactly(int(length))
        writer.close()


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("path", "asked"), ROUTES)
async def test_a_queued_request_whose_client_goes_never_starts(
    path: str, asked: dict[str, Any], is_streamed: bool
) -> None:
    fake = FakeRuns()
    fake.hold_start = asyncio.Event()
    async with live_server(fake) as live:
        body = {"model": "tiny", **asked, "stream": is_streamed}
        await hang_up_after(live, path, body, lambda: fake.num_waiting == 1)
        await eventually(lambda: fake.num_waiting == 0)
        fake.hold_start.set()
        assert (await live.http.get("/health")).status_code == 200
        assert fake.started == []


async def test_a_hundred_clients_that_go_leave_nothing_and_the_others_are_served() -> None:
    fake = FakeRuns()
    async with live_server(fake) as live:

        async def stay(number: int) -> str:
            messages: list[Any] = [{"role": "user", "content": f"stay {number}"}]
            answer = await live.openai.chat.completions.create(model="tiny", messages=messages)
            return answer.choices[0].message.content or ""

        staying = [asyncio.create_task(stay(number)) for number in range(10)]
        leaving = [
            asyncio.create_task(
                hang_up_after(
                    live,
                    "/v1/chat/completions",
                    {"model": "tiny", "messages": HI, "stream": bool(number % 2)},
                    lambda: len(fake.started) == 110,
                )
            )
            for number in range(100)
        ]
        await asyncio.gather(*leaving)
        await eventually(lambda: len(fake.cancelled) == 100)
        for run in fake.started:
            if not run.is_done:
                run.text(run.spec.arguments["messages"][0]["content"])
                run.finish()
        assert await asyncio.gather(*staying) == [f"stay {number}" for number in range(10)]
        assert len(fake.cancelled) == 100
        assert sum(run.num_readers for run in fake.started) == 0


@pytest.mark.parametrize("body", [{}, {"stream": False}])
async def test_a_program_run_whose_client_goes_is_cancelled_unless_detached(body: dict[str, Any]) -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    fake.add_program("agent")
    async with live_server(fake) as live:
        await hang_up_after(live, "/v1/programs/agent/runs", body, lambda: len(fake.started) == 1)
        await eventually(lambda: fake.cancelled == ["run-0"])
        await hang_up_after(live, "/v1/programs/agent/runs?detach=true", body, lambda: fake.num_reading == 1)
        await eventually(lambda: fake.num_reading == 0)
        assert fake.cancelled == ["run-0"]


async def test_who_follows_a_run_and_goes_does_nothing_to_it() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        run_id = await fake.start(RunSpec(program="hello"))
        async with live.http.stream("GET", f"/v1/runs/{run_id}/events") as answer:
            await anext(answer.aiter_lines())
            await eventually(lambda: fake.num_reading == 1)
        await eventually(lambda: fake.num_reading == 0)
        assert fake.cancelled == []


async def test_a_run_that_has_ended_is_not_cancelled() -> None:
    def script(run: FakeRun) -> None:
        run.text("a")
        run.finish()

    fake = FakeRuns(script)
    async with live_server(fake) as live:
        for is_streamed in (False, True):
            body = {"model": "tiny", "messages": HI, "stream": is_streamed}
            await live.http.post("/v1/chat/completions", json=body)
        assert fake.cancelled == []
