"""No request holds its neighbours up, however large: what is done at once is bounded, what cannot fit is not begun."""

import asyncio
import json
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
from fake_runs import MODEL, FakeRun, FakeRuns
from hypothesis import given
from hypothesis import strategies as st
from live_server import live_server

from loopwright.compose.config import ServerConfig
from loopwright.core.errors import LimitExceeded
from loopwright.server import body, json_shape, openai_routes
from loopwright.server.body import LARGE_BYTES, MAX_BODY_BYTES, MAX_VALUES
from loopwright.server.json_shape import PIECE_BYTES, Shape
from loopwright.server.prompt_limits import MAX_BIASES, MAX_CALL_MARKS, MAX_MESSAGES, MAX_PARTS, MAX_STOP_CHARS

pytestmark = [pytest.mark.timeout(60)]

HI = {"role": "user", "content": "Hi"}
CHAT = {"model": "tiny", "messages": [HI]}
MAX_CHARS = MODEL.max_context * MODEL.max_token_bytes
JSON = {"content-type": "application/json"}

texts = st.text(st.sampled_from('a"\\,[]{}:é水'), max_size=8)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def num_values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    of_its_own = max(1, len(value)) if isinstance(value, dict | list) else 0
    return of_its_own + sum(map(num_values, inner))


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (1 if isinstance(value, dict | list) else 0) + max(map(depth, inner), default=0)


@given(values, st.booleans(), st.integers(1, 9))
def test_a_shape_is_that_of_the_value_wherever_its_pieces_end(value: Any, is_ascii: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    shape = Shape()
    for at in range(0, len(text), size):
        shape.push(text[at : at + size])
    assert (shape.num_values, shape.max_depth) == (num_values(value), depth(value))
    assert Shape.may_exceed(text, shape.num_values - 1, 1000)
    assert Shape.may_exceed(text, 1000, shape.max_depth - 1)


@pytest.mark.anyio
async def test_a_large_body_is_looked_at_in_pieces_with_turns_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of_turn: Counter[int] = Counter()
    num_turns = 0
    push = Shape.push

    def count(shape: Shape, piece: bytes) -> None:
        bytes_of_turn[num_turns] += len(piece)
        push(shape, piece)

    async def take_turns() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(json_shape.Shape, "push", count)
    monkeypatch.setattr(body, "parse_body", None)  # nothing is made of it
    payload = json.dumps({**CHAT, "audio": [[]] * (MAX_VALUES + 1)}, separators=(",", ":")).encode()
    async with live_server(FakeRuns()) as live:
        turns = asyncio.create_task(take_turns())
        answer = await live.http.post("/v1/chat/completions", content=payload, headers=JSON)
        turns.cancel()
    assert answer.status_code == 413
    assert f"more than {MAX_VALUES} values" in answer.json()["error"]["message"]
    assert sum(bytes_of_turn.values()) > len(payload) / 2  # as far as it took to find out
    assert max(bytes_of_turn.values()) <= PIECE_BYTES


@pytest.mark.anyio
async def test_what_stands_in_strings_counts_for_nothing() -> None:
    fake = FakeRuns(FakeRun.finish)
    async with live_server(fake) as live:
        text = '[{,\\"' * (MAX_CHARS // 6)
        answer = await live.http.post("/v1/chat/completions", json={**CHAT, "messages": [{**HI, "content": text}]})
    assert answer.status_code != 413, answer.text
    assert len(fake.by_id) == 1


@pytest.mark.anyio
async def test_a_large_body_is_read_on_a_thread_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    read = openai_routes.read_chat
    monkeypatch.setattr(openai_routes, "read_chat", lambda body: threads.append(threading.get_ident()) or read(body))
    async with live_server(FakeRuns(lambda run: run.fail(LimitExceeded("so far")))) as live:
        for size in (10, LARGE_BYTES):
            await live.http.post("/v1/chat/completions", json={**CHAT, "messages": [{**HI, "content": "x" * size}]})
    here = threading.get_ident()
    assert [one == here for one in threads] == [True, False]


def test_the_servers_default_is_the_applications() -> None:
    assert ServerConfig().max_body_bytes == MAX_BODY_BYTES


LONG = "x" * (MAX_CHARS + 1)
IDS = [1] * (MODEL.max_context + 1)
FITTING = "x" * MAX_CHARS


def chat(**fields: Any) -> dict[str, Any]:
    return {**CHAT, **fields}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


CHATS, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
CALLING = [{"role": "assistant", "tool_calls": [call('{"a": [' + "1," * MAX_CALL_MARKS + "1]}")]}, HI]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("route", "sent", "said"),
    [
        (CHATS, chat(messages=[{**HI, "content": LONG}]), "messages: the prompt is too long"),
        (CHATS, chat(messages=[{**HI, "content": FITTING}, HI]), f"has {MAX_CHARS + 2} characters"),
        (CHATS + "/render", chat(messages=[{**HI, "content": LONG}]), "messages: the prompt is too long"),
        (COMPLETIONS, {"model": "tiny", "prompt": LONG}, "prompt: the prompt is too long"),
        (COMPLETIONS, {"model": "tiny", "prompt": IDS}, f"prompt: the prompt is too long: it has {len(IDS)} tokens"),
        (COMPLETIONS, {"model": "tiny", "prompt": [[1], IDS]}, f"it has {len(IDS)} tokens"),
        ("/v1/responses", {"model": "tiny", "input": LONG}, "input: the prompt is too long"),
        (MESSAGES, chat(max_tokens=1, messages=[{**HI, "content": LONG}]), "messages: the prompt is too long"),
        (CHATS, chat(messages=[HI] * (MAX_MESSAGES + 1)), f"messages: {MAX_MESSAGES + 1} messages; the limit is"),
        (
            CHATS,
            chat(messages=[{**HI, "content": [{"type": "text", "text": "x"}] * (MAX_PARTS + 1)}]),
            f"messages: {MAX_PARTS + 1} parts",
        ),
        (CHATS, chat(messages=[{**HI, "role": "assistant", "tool_calls": [call("{}")] * (MAX_PARTS + 1)}]), "calls"),
        (CHATS, chat(messages=CALLING), "in the arguments of calls; the limit is"),
        (CHATS, chat(logit_bias={str(one): 0 for one in range(MAX_BIASES + 1)}), f"logit_bias: {MAX_BIASES + 1}"),
        (CHATS, chat(stop=["x" * MAX_STOP_CHARS, "x"]), f"stop: {MAX_STOP_CHARS + 1} characters; the limit is"),
        ("/v1/responses", {"model": "tiny", "input": [HI] * (MAX_MESSAGES + 1)}, f"input: {MAX_MESSAGES + 1} items"),
        ("/v1/responses", {"model": "tiny", "input": "x", "tools": [{}] * 257}, "tools: 257 tools; the limit is 256"),
        (MESSAGES, chat(max_tokens=1, messages=[HI] * (MAX_MESSAGES + 1)), f"messages: {MAX_MESSAGES + 1} messages"),
        (MESSAGES, chat(max_tokens=1, tools=[{}] * 257), "tools: 257 tools; the limit is 256"),
        ("/tokenize", {"prompt": "x" * ((1 << 20) + 1)}, "prompt: 1048577 characters; the limit is 1048576"),
    ],
)
async def test_what_cannot_fit_is_refused_by_name_and_begins_nothing(
    route: str, sent: dict[str, Any], said: str
) -> None:
    fake = FakeRuns()
    async with live_server(fake) as live:
        answer = await live.http.post(route, json=sent)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    if "too long" in said and route != MESSAGES:
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert not fake.by_id


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("route", "sent"),
    [
        (CHATS, chat(messages=[{**HI, "content": FITTING}])),
        (CHATS, chat(messages=[{**HI, "content": LONG}], truncate_prompt_tokens=5)),
        (COMPLETIONS, {"model": "tiny", "prompt": LONG, "truncate_prompt_tokens": 5}),
        (COMPLETIONS, {"model": "tiny", "prompt": IDS, "truncate_prompt_tokens": 5}),
        ("/v1/responses", {"model": "tiny", "input": LONG, "truncation": "auto"}),
    ],
)
async def test_what_might_fit_or_is_cut_on_request_is_begun(route: str, sent: dict[str, Any]) -> None:
    fake = FakeRuns(lambda run: run.fail(LimitExceeded("so far")))
    async with live_server(fake) as live:
        assert (await live.http.post(route, json=sent)).status_code == 422
    (run,) = fake.by_id.values()
    if sent.get("prompt") is IDS:
        assert run.spec.arguments["prompts"] == [[1] * 5]


@pytest.mark.anyio
@pytest.mark.parametrize(("route", "sent", "field"), [
    (CHATS, CHAT, "messages"), (COMPLETIONS, {"model": "tiny", "prompt": "x"}, "prompt"),
    ("/v1/responses", {"model": "tiny", "input": "x"}, "input"), (MESSAGES, chat(max_tokens=1), "messages"),
])  # fmt: skip
async def test_what_passes_no_call_is_said_of_the_requests_own_field(
    route: str, sent: dict[str, Any], field: str
) -> None:
    error = LimitExceeded("a call has 9 characters; the limit is 8", field="max_message_bytes")
    async with live_server(FakeRuns(lambda run: run.fail(error))) as live:
        answer = await live.http.post(route, json=sent)
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert told["message"].startswith(f"{field}: is too large: a call has 9 characters; the limit is 8")
    assert told.get("param", field) == field


@pytest.mark.anyio
async def test_a_body_is_bounded_as_the_server_is_told() -> None:
    async with live_server(FakeRuns(), max_body_bytes=2000) as live:
        answer = await live.http.post(CHATS, json=chat(user="x" * 2000))
    assert answer.status_code == 413
    assert "the body has more than 2000 bytes" in answer.json()["error"]["message"]
    assert msgspec.json.decode(answer.content)["error"]["type"] == "invalid_request_error"
