"""A stream that has nothing to say says that it lives, in a way that each client leaves out."""

from collections import Counter
from typing import Any

import pytest
from fake_runs import FakeRun, FakeRuns
from live_server import live_server

from loopwright.server import sse
from loopwright.server.message_form import MessageForm

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HI: list[Any] = [{"role": "user", "content": "Hi"}]
ROUTES = [
    ("/v1/chat/completions", {"messages": HI}, ": alive"),
    ("/v1/responses", {"input": "Hi"}, ": alive"),
    ("/v1/messages", {"messages": HI, "max_tokens": 9}, 'event: ping\ndata: {"type":"ping"}'),
]


@pytest.mark.parametrize(("path", "asked", "alive"), ROUTES)
async def test_a_quiet_stream_says_that_it_lives_until_it_goes_on(
    path: str, asked: dict[str, Any], alive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "QUIET_S", 0.01)
    fake = FakeRuns(lambda run: run.text("Hel"))
    async with live_server(fake) as live:
        body = {"model": "tiny", **asked, "stream": True}
        async with live.http.stream("POST", path, json=body) as answer:
            said = ""
            async for piece in answer.aiter_text():
                said += piece
                if fake.started[0].is_done:
                    continue
                if said.partition("Hel")[2].count(f"\n\n{alive}\n\n") >= 2:
                    run: FakeRun = fake.started[0]
                    run.text("lo")
                    run.finish({"choices": [{"candidate": 0, "finish_reason": "stop"}]})
    assert "lo" in said.rpartition(alive)[2]
    assert said.endswith("\n\n")


async def test_the_quiet_is_counted_from_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[float, bytes]] = []
    now_s, slept_s = 0.0, []

    async def send(message: Any) -> None:
        sent.append((now_s, message["body"]))
        if len(sent) == 2:
            raise ConnectionError

    async def sleep(delay_s: float) -> None:
        nonlocal now_s
        slept_s.append(delay_s)
        if len(slept_s) == 1:  # in the midst of the first wait it says something
            now_s += 10.0
            pulse.spoke()
            now_s -= 10.0
        now_s += delay_s

    pulse = sse._Pulse()
    monkeypatch.setattr(pulse, "_clock_s", lambda: now_s)
    pulse.spoke()
    monkeypatch.setattr(sse.asyncio, "sleep", sleep)
    with pytest.raises(ConnectionError):
        await pulse._beat(send, b"alive")
    assert slept_s == [15.0, 10.0, 15.0]
    assert sent == [(25.0, b"alive"), (40.0, b"alive")]


async def test_a_stream_that_speaks_is_not_interrupted() -> None:
    fake = FakeRuns(lambda run: (run.text("Hello"), run.finish({"choices": []}))[1])
    async with live_server(fake) as live:
        answer = await live.http.post(ROUTES[0][0], json={"model": "tiny", **ROUTES[0][1], "stream": True})
    assert ": alive" not in answer.text


async def test_clients_gather_the_text_of_a_quiet_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "QUIET_S", 0.01)
    send_body, fake, num_quiet = sse._send_body, FakeRuns(lambda run: run.text("Hel")), Counter()

    async def send(send: Any, body: bytes) -> None:
        await send_body(send, body)
        num_quiet[len(fake.started)] += body in (sse.ALIVE, MessageForm.alive)
        run = fake.started[-1]
        if num_quiet[len(fake.started)] >= 3 and not run.is_done:
            run.text("lo")
            run.finish({"choices": [{"candidate": 0, "finish_reason": "stop"}]})

    monkeypatch.setattr(sse, "_send_body", send)
    async with live_server(fake) as live:
        async with live.anthropic.messages.stream(model="tiny", messages=HI, max_tokens=9) as messages:
            assert await messages.get_final_text() == "Hello"
        chunks = await live.openai.chat.completions.create(model="tiny", messages=HI, stream=True)
        assert "".join([one.choices[0].delta.content or "" async for one in chunks]) == "Hello"
    assert min(num_quiet[1], num_quiet[2]) >= 3
