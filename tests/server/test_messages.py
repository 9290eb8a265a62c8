"""/v1/messages through the real anthropic package and a real server: whole, streamed, of programs, refused."""

import json
from typing import Any

import anthropic
import pytest
from anthropic_spec import check, check_event
from fake_runs import FakeRun, FakeRuns
from live_server import Live, live_server

from loopwright.core.errors import ContextTooLong, InternalError, Overloaded
from loopwright.core.runs import Parameter

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PATH = "/v1/messages"
HI: list[Any] = [{"role": "user", "content": "Hi"}]
PREFILL = {"role": "assistant", "content": "The"}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
USAGE = {
    "prompt_tokens": 13,
    "completion_tokens": 2,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
TOOL = {"name": "f", "description": "It is f.", "input_schema": {"type": "object", "properties": {}}}


def ended(reason: str = "stop", stop: str | int | None = None) -> Any:
    return {"choices": [{"candidate": 0, "finish_reason": reason, "stop_reason": stop}], "usage": USAGE}


def say_hello(run: FakeRun) -> None:
    run.text("Hel", "lo")
    run.finish(ended())


def think_and_say(run: FakeRun) -> None:
    run.tokens(text="Hm.", channel="reasoning")
    run.text("Yes")
    run.finish(ended())


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 9, "messages": HI, **more}


async def events_of(live: Live, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each checked against Anthropic's specification and named as its type says."""
    answer = await live.http.post(PATH, json=asked(stream=True, **body))
    assert answer.status_code == 200, answer.text
    *written, end = answer.text.split("\n\n")
    assert end == ""
    found = []
    for one in written:
        name, data = one.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def post(live: Live, **body: Any) -> dict[str, Any]:
    answer = await live.http.post(PATH, json=asked(**body))
    assert answer.status_code == 200, answer.text
    check("Message", answer.json())
    return answer.json()  # type: ignore[no-any-return]


async def test_a_message_has_the_text_the_reason_and_the_usage() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        message = await live.anthropic.messages.create(**asked())
        await post(live)
    assert (message.id, message.type, message.role, message.model) == ("msg_run-0", "message", "assistant", "tiny")
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", "Hello")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 8, 2)


async def test_a_request_is_the_run_of_the_chat_program() -> None:
    fake = FakeRuns(say_hello)
    async with live_server(fake) as live:
        await live.anthropic.messages.create(
            model="tiny",
            max_tokens=7,
            system=[
                {"type": "text", "text": "Be "},
                {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}},
            ],
            messages=[
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": ""},
                        {"type": "text", "text": "b"},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "c"}]},
                        {"type": "text", "text": "d"},
                        {"type": "text", "text": "e"},
                    ],
                },
            ],
            stop_sequences=["\n"],
            metadata={"user_id": "u"},
            tools=[TOOL],  # type: ignore[list-item]
            tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
            thinking={"type": "disabled"},
            extra_body={"seed": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 40},
        )
    arguments = fake.started[0].spec.arguments
    assert arguments["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [{"id": "t1", "name": "f", "arguments": {"x": 1}}]},
        {"role": "tool", "content": "c", "tool_call_id": "t1", "name": "f"},
        {"role": "user", "content": "de"},
    ]
    options = arguments["options"]
    assert options["sampling"] == {"temperature": 0.5, "top_p": 0.9, "top_k": 40}
    assert (options["max_tokens"], options["stop"], options["seed"]) == (7, ["\n"], 3)
    assert options["grammar"] == {"kind": "json_schema", "source": '{"type": "object"}'}
    told = options["tools"]
    assert (told["choice"], told["parallel"], told["tools"][0]["name"]) == ("f", False, "f")


async def test_the_events_of_a_text_come_in_the_documented_order() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        events = await events_of(live)
    for event in events:
        check_event(event)
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[3]["delta"] == {"type": "text_delta", "text": "Hello"}
    assert events[5]["delta"]["stop_reason"] == "end_turn"
    assert (events[5]["usage"]["input_tokens"], events[5]["usage"]["cache_read_input_tokens"]) == (5, 8)


@pytest.mark.parametrize("script", [say_hello, think_and_say, lambda run: run.finish(ended("length"))])
async def test_what_the_client_gathers_of_a_stream_is_the_whole_message(script: Any) -> None:
    async with live_server(FakeRuns(script)) as live:
        whole = await live.anthropic.messages.create(**asked())
        async with live.anthropic.messages.stream(**asked()) as stream:
            final = await stream.get_final_message()
    found, expected = final.to_dict(), whole.to_dict()
    assert found["content"] == expected["content"]
    assert [found[name] for name in ("stop_reason", "stop_sequence", "type", "role")] == [
        expected[name] for name in ("stop_reason", "stop_sequence", "type", "role")
    ]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens


async def test_thoughts_are_a_block_of_their_own() -> None:
    async with live_server(FakeRuns(think_and_say)) as live:
        events = await events_of(live)
        whole = await post(live)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Yes", "citations": None},
    ]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "text_delta", "text": "Yes"}]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1]
    assert whole["usage"]["output_tokens_details"] == {"thinking_tokens": 1}


@pytest.mark.parametrize(
    ("result", "reason", "sequence"),
    [
        (ended("length"), "max_tokens", None),
        (ended("stop", "\n"), "stop_sequence", "\n"),
        (ended("stop", 17), "end_turn", None),
        (ended("stop"), "end_turn", None),
    ],
)
async def test_a_message_says_why_it_ended(result: Any, reason: str, sequence: str | None) -> None:
    def script(run: FakeRun) -> None:
        run.text("a")
        run.finish(result)

    async with live_server(FakeRuns(script)) as live:
        whole = await post(live)
        delta = next(event["delta"] for event in await events_of(live) if event["type"] == "message_delta")
    for one in (whole, delta):
        assert (one["stop_reason"], one["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [*HI, {"role": "assistant", "content": "The "}]}, "messages[1].content"),
        ({"messages": [*HI, {"role": "assistant", "content": ""}]}, "messages[1].content"),
        ({"messages": [*HI, CALLED]}, "messages[1].content"),
        (
            {"messages": [*HI, PREFILL], "output_config": {"format": {"type": "json_schema", "schema": {}}}},
            "messages[1].content",
        ),
        ({"messages": [*HI, PREFILL], "thinking": {"type": "enabled", "budget_tokens": 5}}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [*HI, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[1].content[0].tool_use_id",
        ),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_what_cannot_be_honoured_is_named(body: dict[str, Any], field: str) -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        answer = await live.http.post(PATH, json=asked(**body))
    assert answer.status_code == 400
    check("ErrorResponse", answer.json())
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{field}: ")
    assert answer.json()["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ContextTooLong("positions: 129 tokens; the model attends to 128", field="positions"),
            anthropic.BadRequestError,
        ),
        (InternalError("oh"), anthropic.InternalServerError),
    ],
)
async def test_an_error_before_the_first_text_is_an_http_status(error: Any, expected: Any, is_streamed: bool) -> None:
    async with live_server(FakeRuns(lambda run: run.fail(error))) as live:
        with pytest.raises(expected) as caught:
            await live.anthropic.messages.create(**asked(stream=is_streamed))
    assert error.message.removeprefix("positions") in str(caught.value)
    assert "positions" not in str(caught.value)


async def test_errors_have_the_statuses_and_types_of_anthropic() -> None:
    fake = FakeRuns(say_hello)
    async with live_server(fake) as live:
        with pytest.raises(anthropic.NotFoundError):
            await live.anthropic.messages.create(**asked(model="claude"))
        missing = await live.http.get(f"{PATH}/none")
        method = await live.http.get(PATH)
        media = await live.http.post(PATH, content=b"x")
        fake.refuse_start = Overloaded("512 runs are live; at most 512 fit")
        with pytest.raises(anthropic.RateLimitError) as caught:
            await live.anthropic.messages.create(**asked())
        assert caught.value.response.headers["retry-after"] == "1"
        old = await live.http.post(PATH, json=asked(), headers={"anthropic-version": "2023-01-01"})
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (method.status_code, media.status_code) == (405, 415)
    for answer in (missing, method, media, old):
        check("ErrorResponse", answer.json())
    assert old.json()["error"]["message"].startswith("anthropic-version: ")


async def test_an_error_after_the_first_text_is_the_last_event() -> None:
    def script(run: FakeRun) -> None:
        run.text("a")
        run.fail(InternalError("the model worker died"))

    async def read(live: Live) -> None:
        async for _ in await live.anthropic.messages.create(**asked(stream=True)):
            pass

    async with live_server(FakeRuns(script)) as live:
        events = await events_of(live)
        with pytest.raises(anthropic.APIStatusError, match="the model worker died"):
            await read(live)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"] == {"type": "api_error", "message": "the model worker died"}


async def test_a_program_is_a_model_of_messages_too() -> None:
    def script(run: FakeRun) -> None:
        run.text("It ")
        run.emit({"type": "tool_call", "name": "f", "arguments": {"x": 1}})
        run.finish("ignored")

    fake = FakeRuns(script)
    takes_messages = Parameter("messages", "list", is_required=True)
    fake.add_program("agent", takes_messages, Parameter("max_tokens", "int", is_required=True))
    fake.add_program("free", takes_messages)
    async with live_server(fake) as live:
        message = await live.anthropic.messages.create(**asked(model="program:agent"))
        async with live.anthropic.messages.stream(**asked(model="program:agent")) as stream:
            final = await stream.get_final_message()
        await live.anthropic.messages.create(**asked(model="program:free"))
    assert fake.started[0].spec.arguments == {"messages": HI, "max_tokens": 9}
    assert fake.started[2].spec.arguments == {"messages": HI}
    for one in (message, final):
        assert [block.type for block in one.content] == ["text", "tool_use"]
        assert one.content[1].input == {"x": 1}  # type: ignore[union-attr]
        assert one.stop_reason == "tool_use"


async def test_tokens_are_counted() -> None:
    fake = FakeRuns(lambda run: run.finish({"tokens": [1, 2, 3]}))
    async with live_server(fake) as live:
        count = await live.anthropic.messages.count_tokens(
            model="tiny",
            messages=HI,
            system="S",
            tools=[TOOL],  # type: ignore[list-item]
        )
    assert count.input_tokens == 3
    spec = fake.started[0].spec
    assert spec.program == "tokenize"
    assert [one["content"] for one in spec.arguments["messages"]] == ["S", "Hi"]
    assert [one["name"] for one in spec.arguments["tools"]] == ["f"]


async def test_a_request_id_comes_back_in_the_header_that_the_client_reads() -> None:
    async with live_server(FakeRuns(say_hello)) as live:
        message = await live.anthropic.messages.create(**asked(), extra_headers={"x-request-id": "mine"})
    assert message._request_id == "mine"
