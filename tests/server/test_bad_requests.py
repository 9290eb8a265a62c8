"""Whatever a client sends: a 4xx in OpenAI's form that names the field, never a 500, and the server goes on."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from fake_runs import MODEL, FakeRuns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import live_server

from loopwright.core.errors import BadRequest, ErrorInfo, LoopwrightError, error_types
from loopwright.server.body import MAX_BODY_BYTES, MAX_NESTING, check_shape, parse_body, parse_object
from loopwright.server.chat_request import ChatBody, chat_spec, read_chat
from loopwright.server.errors import status_of

pytestmark = [pytest.mark.timeout(60)]

HI = [{"role": "user", "content": "Hi"}]


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION_CALL = {"name": "f", "arguments": "{}"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def call_with(arguments: str) -> dict[str, Any]:
    return {**CALLING, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}]}


def nested(depth: int) -> str:
    """Objects in each other, so many."""
    return '{"a":' * depth + "1" + "}" * depth


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(*names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named(name) for name in names]}}


def refusal(**fields: Any) -> BadRequest:
    body = {"model": "tiny", "messages": HI, **fields}
    with pytest.raises(BadRequest) as caught:
        chat_spec(read_chat(parse_body(json.dumps(body).encode(), ChatBody)), MODEL)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model": 3}, "model"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].name"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "x", "function_call": FUNCTION_CALL}]}, "messages[0].function_call"),
        ({"messages": [{**CALLING, "function_call": FUNCTION_CALL}]}, "messages[0].function_call"),
        ({"messages": [{**CALLING, "tool_calls": [CALL, CALL]}]}, "messages[0].tool_calls[1].id"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [*HI, CALLING]}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{**CALLING, "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [CALLING, {"role": "tool", "tool_call_id": "1"}]}, "messages[1].content"),
        ({"messages": [CALLING, {"role": "tool", "content": "x", "tool_call_id": "2"}]}, "messages[1].tool_call_id"),
        ({"messages": [call_with("[]")]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [call_with('{"a"')]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [call_with('{"a": NaN}')]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [call_with('{"a": 1e999}')]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [call_with('{"a": "\\ud800"}')]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [call_with(nested(201))]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [*HI, {"role": "assistant", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"messages": [{"role": "user", "content": "x", "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "x", "extra": 1}]}, "messages[0].extra"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [*HI, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]},
            "messages[1].content[1]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "video", "x": 1}]}]}, "messages[0].content[0].type"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprob_kind": "raw"}, "logprob_kind"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"logit_bias": {"256": 1}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("f" * 129)]}, "tools[0].function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        ({"tools": [tool(f"f{number}") for number in range(257)]}, "tools"),
        ({"tools": [tool("f", strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool("f", parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool("f", parameters={"properties": []})]}, "tools[0].function.parameters.properties"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "some", "tools": [tool("f")]}, "tool_choice"),
        ({"tool_choice": named("g"), "tools": [tool("f")]}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "custom"}, "tools": [tool("f")]}, "tool_choice.type"),
        ({"tool_choice": allowed("f", "g"), "tools": [tool("f")]}, "tool_choice.allowed_tools.tools[1].function.name"),
        ({"tool_choice": allowed(), "tools": [tool("f")]}, "tool_choice.allowed_tools.tools"),
        ({"parallel_tool_calls": 1, "tools": [tool("f")]}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}], "tools": [tool("f")]}, "functions"),
        (
            {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "x", "reasoning_content": "x"}]}, "messages[0].reasoning_content"),
        ({"verbosity": "high"}, "verbosity"),
        ({"seed": 2**64}, "seed"),
        ({"temperature": 1e300}, "temperature"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [tool("f")], "tool_choice": {"type": "none"}}, "tool_choice.type"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
        ({"functions": [{"name": "f", "parameters": {"type": "array"}}]}, "functions[0].parameters.type"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": ""}, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"}, "reasoning_effort"),
        ({"enable_thinking": 1}, "enable_thinking"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    error = refusal(**fields)
    assert error.field == named
    assert named.partition("[")[0] in error.message


def test_null_is_the_same_as_absent() -> None:
    optional = set(ChatBody.__struct_fields__) - {"model", "messages"}
    body = {"model": "tiny", "messages": HI, **dict.fromkeys(optional)}
    bare = {"model": "tiny", "messages": HI}
    assert chat_spec(read_chat(msgspec.convert(body, ChatBody)), MODEL) == chat_spec(
        read_chat(msgspec.convert(bare, ChatBody)), MODEL
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(ChatBody.__struct_fields__), json_values, max_size=4))
def test_any_json_is_a_chat_or_a_bad_request(fields: dict[str, Any]) -> None:
    payload = json.dumps({"model": "tiny", "messages": HI, **fields}).encode()
    with contextlib.suppress(BadRequest):
        chat_spec(read_chat(parse_body(payload, ChatBody)), MODEL)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=50))
def test_any_bytes_are_a_chat_or_a_bad_request(payload: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_body(payload, ChatBody)


def test_every_error_has_a_status_and_only_faults_of_ours_have_500() -> None:
    statuses = {kind.__name__: status_of(kind("x")) for kind in error_types() if kind.__module__.startswith("loopw")}
    assert {name for name, status in statuses.items() if status == 500} == {"LoopwrightError", "InternalError"}
    assert all(400 <= status < 600 for status in statuses.values())


MALFORMED = [
    (b"", "application/json", 400),
    (b"{", "application/json", 400),
    (b"[]", "application/json", 400),
    (b"3", "application/json; charset=utf-8", 400),
    (b'"\xff"', "application/json", 400),
    (b'{"model": "\\ud800"}', "application/json", 400),
    (b'{"model": 1e999}', "application/json", 400),
    (b"[" * 200_000, "application/json", 400),
    (b'{"a":' * 200_000, "application/json", 400),
    (b'{"model": 5}', "application/json", 400),
    (b'{"model": 5}', "text/plain", 415),
    (b"a=b", "application/x-www-form-urlencoded", 415),
    (b" " * (MAX_BODY_BYTES + 1), "application/json", 413),
]


@pytest.mark.anyio
async def test_malformed_bodies_are_4xx_on_every_route_and_the_server_goes_on() -> None:
    fake = FakeRuns()
    fake.add_program("agent")
    routes = ["/v1/chat/completions", "/v1/programs", "/v1/programs/agent/runs", "/v1/runs"]
    async with live_server(fake) as live:
        for route in routes:
            for payload, media_type, status in MALFORMED:
                answer = await live.http.post(route, content=payload, headers={"content-type": media_type})
                assert answer.status_code == status, (route, payload[:20])
                error = answer.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert "Traceback" not in answer.text
        assert (await live.http.get("/health")).json() == {"status": "ok"}
    assert fake.started == []


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [MAX_NESTING, 500, 900, 2000])
async def test_a_body_that_is_nested_too_deeply_is_refused_wherever_it_is(depth: int) -> None:
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "/v1/chat/completions": ("guided_json", {"model": "tiny", "messages": HI}),
        "/v1/responses": ("input", {"model": "tiny"}),
        "/v1/messages": ("tools", {"model": "tiny", "messages": HI, "max_tokens": 1}),
        "/v1/programs/agent/runs": ("arguments", {}),
    }
    fake = FakeRuns()
    fake.add_program("agent")
    async with live_server(fake) as live:
        for route, (field, body) in bodies.items():
            value = nested(depth + 1) if field in ("guided_json", "arguments") else f"[{nested(depth)}]"
            payload = json.dumps({**body, field: "HERE"}).replace('"HERE"', value)
            answer = await live.http.post(route, content=payload, headers={"content-type": "application/json"})
            assert answer.status_code == 400, (route, answer.text)
            if depth < 900:  # deeper ones may not be read at all
                assert f"{field}: lists and objects are nested more than 200 deep" in answer.json()["error"]["message"]
    assert fake.started == []


@pytest.mark.anyio
async def test_a_body_may_be_nested_up_to_the_limit() -> None:
    for depth in (MAX_NESTING, MAX_NESTING + 1):
        payload = json.dumps({"model": "tiny", "messages": HI, "guided_json": "HERE"}).replace('"HERE"', nested(depth))
        with contextlib.nullcontext() if depth == MAX_NESTING else pytest.raises(BadRequest, match="guided_json"):
            await check_shape(payload.encode())
            chat_spec(read_chat(parse_body(payload.encode(), ChatBody)), MODEL)
        with contextlib.nullcontext() if depth == MAX_NESTING else pytest.raises(BadRequest, match="place"):
            assert parse_object(nested(depth), "place")["a"]


@pytest.mark.anyio
async def test_an_error_does_not_send_back_a_name_of_any_length() -> None:
    async with live_server(FakeRuns()) as live:
        for body in (
            {"model": "m" * 100_000, "messages": HI},
            {"model": "tiny", "messages": HI, "k" * 100_000: 1},
            {"model": "tiny", "messages": [{**HI[0], "k" * 100_000: 1}]},
            {"model": "tiny", "messages": HI, "tools": [tool("f", parameters={"type": "t" * 100_000})]},
            {"model": "tiny", "messages": HI, "k" * 100_000: json.loads(nested(300))},
        ):
            answer = await live.http.post("/v1/chat/completions", json=body)
            assert 400 <= answer.status_code < 500
            assert len(answer.content) < 2000, answer.text[:200]


@pytest.mark.anyio
async def test_unknown_routes_and_methods_are_errors_in_openai_s_form() -> None:
    async with live_server(FakeRuns()) as live:
        for method, path, status in [
            ("GET", "/", 404),
            ("GET", "/v1/none", 404),
            ("GET", "/v1/chat/completions", 405),
            ("PUT", "/v1/programs", 405),
            ("GET", "/docs", 404),
            ("POST", "/openapi.json", 405),
        ]:
            answer = await live.http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.anyio
async def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    async with live_server(FakeRuns()) as live:
        body = {"model": "tiny", "messages": HI, "logit_bias": {"256": 1}}
        answer = await live.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")


@pytest.mark.anyio
async def test_only_loopback_names_are_answered_on_loopback() -> None:
    async with live_server(FakeRuns()) as live:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]", "", "localhost.evil"):
            answer = await live.http.get("/health", headers={"host": host})
            assert answer.status_code == 403, host
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8000"):
            assert (await live.http.get("/health", headers={"host": host})).status_code == 200, host


class BrokenRuns(FakeRuns):
    async def runs(self) -> Any:
        raise ZeroDivisionError("our own secret")


@pytest.mark.anyio
async def test_a_fault_of_ours_is_a_500_that_tells_no_secrets() -> None:
    async with live_server(BrokenRuns()) as live:
        answer = await live.http.get("/v1/runs")
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "secret" not in answer.text
        assert (await live.http.get("/health")).status_code == 200


def test_an_error_keeps_its_type_over_the_wire() -> None:
    for kind in error_types(LoopwrightError):
        info = kind("m", hint="h", field="f").info()
        assert msgspec.json.decode(msgspec.json.encode(info), type=ErrorInfo) == info


async def test_a_route_that_does_not_exist_is_named_with_where_to_look() -> None:
    async with live_server(FakeRuns()) as live:
        missing = await live.http.post("/v1/embeddings", json={})
        wrong = await live.http.get("/v1/chat/completions")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == (
        "there is no route POST /v1/embeddings; GET /openapi.json lists those there are"
    )
    assert wrong.status_code == 405
    assert wrong.json()["error"]["message"] == "there is no GET /v1/chat/completions; that path takes POST"


async def test_a_base_url_with_v1_too_few_or_too_many_is_said() -> None:
    async with live_server(FakeRuns()) as live:
        too_few = await live.http.post("/chat/completions", json={})
        too_many = await live.http.post("/v1/v1/messages", json={})
    assert (too_few.status_code, too_many.status_code) == (404, 404)
    assert too_few.json()["error"]["message"].endswith("; the base URL of this client ends with /v1")
    assert too_many.json()["error"]["message"].endswith(
        "; the base URL of this client is the server itself, without /v1"
    )
