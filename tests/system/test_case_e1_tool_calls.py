"""Case E1. A turn with two tool calls, through the openai package: `tool_calls` is an array with indexes 0 and 1; id,
type and name stand on the first delta of each; arguments join to JSON; and a stream comes to what a whole answer is."""

import json
from typing import Any

import pytest
from http_rig import Served, served
from tools_rig import ASK, NOON, TOOLS, function, hermes, saying

from system_rig import byte_system, in_loop

NASTY = 'a } " </tool_call> {b\n😀'
TWO = f"I look.\n{hermes('weather', city=NASTY, days=2)}\n{hermes('noon')}"


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


async def whole(client: Served, **options: Any) -> Any:
    """The one choice of a whole answer."""
    given = {"messages": ASK, "tools": TOOLS, "temperature": 0, **options}
    answer = await client.openai.chat.completions.create(model="byte", **given)
    return answer.choices[0]


async def chunks_of(client: Served, **options: Any) -> list[Any]:
    given = {"messages": ASK, "tools": TOOLS, "temperature": 0, **options}
    stream = await client.openai.chat.completions.create(model="byte", stream=True, **given)
    return [chunk async for chunk in stream]


async def streamed(client: Served, **options: Any) -> Any:
    """The one choice that the client's own gathering makes of a stream."""
    given = {"messages": ASK, "tools": TOOLS, "temperature": 0, **options}
    async with client.openai.chat.completions.stream(model="byte", **given) as stream:
        return (await stream.get_final_completion()).choices[0]


def outline(choice: Any) -> tuple[Any, ...]:
    message = choice.message
    calls = [
        (one.id.split("_", 2)[2], one.type, one.function.name, one.function.arguments)
        for one in message.tool_calls or ()
    ]
    return message.role, message.content, calls, choice.finish_reason


def test_two_calls_of_a_stream_are_those_of_the_whole_answer() -> None:
    async def scenario() -> None:
        async with saying(TWO) as client:
            answer = await whole(client)
            chunks = await chunks_of(client)
            assert (answer.message.content, answer.finish_reason) == ("I look.\n", "tool_calls")
            found = [
                (one.type, one.function.name, json.loads(one.function.arguments)) for one in answer.message.tool_calls
            ]
            assert found == [("function", "weather", {"city": NASTY, "days": 2}), ("function", "noon", {})]
            deltas = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
            for number, call in enumerate(answer.message.tool_calls):
                first, *others = [one for one in deltas if one.index == number]
                assert (first.type, first.function.name) == ("function", call.function.name)
                assert first.id
                assert all(one.id is None and one.type is None and one.function.name is None for one in others)
                assert (
                    first.function.arguments + "".join(one.function.arguments for one in others)
                    == call.function.arguments
                )
            assert len({one.id for one in deltas if one.id}) == len({one.id for one in answer.message.tool_calls}) == 2
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I look.\n"
            assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [
                "tool_calls"
            ]

    in_loop(scenario)


def test_arguments_come_while_they_are_written() -> None:
    async def scenario() -> None:
        async with saying(hermes("weather", city="x" * 200, days=1)) as client:
            deltas = [one for chunk in await chunks_of(client) for one in chunk.choices[0].delta.tool_calls or ()]
            assert len(deltas) > 3

    in_loop(scenario)


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("weather")]}}


@pytest.mark.parametrize(
    ("says", "options", "content", "names", "reason"),
    [
        (TWO, {"parallel_tool_calls": False}, "I look.\n", ["weather"], "tool_calls"),
        (TWO, {"max_tokens": 95}, "I look.\n", ["weather"], "length"),
        (TWO, {"max_tokens": 12}, "I look.\n<too", [], "length"),
        ("Just text.", {}, "Just text.", [], "stop"),
        ("", {}, "", [], "stop"),
        (" \n", {}, " \n", [], "stop"),
        (hermes("noon"), {"tool_choice": "required"}, None, ["noon"], "tool_calls"),
        (f"{hermes('noon')}\n{hermes('noon')}", {"tool_choice": "required"}, None, ["noon", "noon"], "tool_calls"),
        (f"{hermes('noon')}\n{hermes('noon')}", {"tool_choice": named("noon")}, None, ["noon"], "tool_calls"),
        ("Just text.", {"tool_choice": "none"}, "Just text.", [], "stop"),
        (f"{hermes('noon')} done", {}, " done", ["noon"], "tool_calls"),
        (TWO, {"tool_choice": ALLOWED, "parallel_tool_calls": False}, "I look.\n", ["weather"], "tool_calls"),
    ],
)  # fmt: skip
def test_how_a_turn_with_tools_ends(
    says: str, options: Any, content: str | None, names: list[str], reason: str
) -> None:
    async def scenario() -> None:
        async with saying(says) as client:
            answer = await whole(client, **options)
            message = answer.message
            assert message.content == content
            assert [one.function.name for one in message.tool_calls or ()] == names
            assert answer.finish_reason == reason
            chunks = await chunks_of(client, **options)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == (content or "")
            if reason != "length":  # of one that was cut, the client's own gathering makes an error
                assert outline(await streamed(client, **options))[2:] == outline(answer)[2:]

    in_loop(scenario)


def test_a_call_that_is_cut_has_the_beginning_of_its_arguments() -> None:
    async def scenario() -> None:
        async with saying(hermes("weather", city="Zürich", days=2)) as client:
            answer = await whole(client, max_tokens=60)
            (call,) = answer.message.tool_calls
            assert answer.finish_reason == "length"
            assert json.dumps({"city": "Zürich", "days": 2}, ensure_ascii=False).startswith(call.function.arguments)
            assert call.function.arguments

    in_loop(scenario)


def test_calls_and_results_go_back_as_the_model_wrote_them() -> None:
    async def scenario() -> None:
        async with saying(TWO, "Rain.") as client:
            first = await whole(client)
            results = [
                {"role": "tool", "tool_call_id": one.id, "content": f"result of {one.function.name}"}
                for one in first.message.tool_calls
            ]
            messages = [*ASK, first.message.model_dump(exclude_none=True), *results]
            second = await whole(client, messages=messages)
            assert (second.message.content, second.message.tool_calls, second.finish_reason) == ("Rain.", None, "stop")
            rendered = await client.http.post(
                "/v1/chat/completions/render", json={"model": "byte", "messages": messages, "tools": TOOLS}
            )
            text = rendered.json()["text"]
            assert text.count('{"name": "weather", "description"') == 1
            assert TWO.replace("I look.\n", "I look.\n\n") in text
            assert "<|im_start|>tool\nresult of weather<|im_end|>\n<|im_start|>tool\nresult of noon<|im_end|>\n" in text
            tokenized = await client.http.post("/tokenize", json={"messages": messages, "tools": TOOLS})
            assert tokenized.json()["tokens"] == rendered.json()["token_ids"]

    in_loop(scenario)


def test_every_choice_has_its_own_calls_and_what_stands_behind_them() -> None:
    async def scenario() -> None:
        async with saying(TWO) as client:
            options: Any = {"n": 2, "logprobs": True, "extra_body": {"return_token_ids": True}}
            answer = await client.openai.chat.completions.create(
                model="byte", messages=ASK, tools=TOOLS, temperature=0, **options
            )
            ids = [one.id for choice in answer.choices for one in choice.message.tool_calls or ()]
            assert len(set(ids)) == 4
            for choice in answer.choices:
                assert choice.logprobs is not None
                assert choice.logprobs.content is not None
                assert "".join(one.token for one in choice.logprobs.content if one.bytes).startswith(
                    "I look.\n<tool_call>"
                )
                assert bytes(one for one in choice.token_ids if one < 256).decode() == TWO  # type: ignore[attr-defined]

    in_loop(scenario)


def test_a_strict_schema_that_cannot_be_held_is_refused_and_one_that_is_not_strict_is_taken() -> None:
    exotic = {"type": "array", "contains": {}}

    async def scenario() -> None:
        async with saying(hermes("odd", x=["y"])) as client:
            for is_strict in (True, False):
                tools = [NOON, function("odd", is_strict, x=exotic)]
                body = {"model": "byte", "messages": ASK, "tools": tools, "temperature": 0}
                answer = await client.http.post("/v1/chat/completions", json=body)
                assert answer.status_code == (400 if is_strict else 200)
                if is_strict:
                    error = answer.json()["error"]
                    assert error["param"] == "tools[1].function.parameters#/properties/x/contains"
                else:
                    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
                    assert call["function"] == {"name": "odd", "arguments": '{"x": ["y"]}'}

    in_loop(scenario)


RATE = function("rate", True, stars={"type": "integer", "minimum": 1, "maximum": 5}, mood={"enum": ["good", "bad"]})


@pytest.mark.parametrize("choice", ["required", named("rate")])
def test_a_random_model_calls_as_the_schema_says(choice: Any) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for seed in range(4):
                options: Any = {"tools": [RATE], "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
                answer = await client.openai.chat.completions.create(model="byte", messages=ASK, **options)
                (call,) = answer.choices[0].message.tool_calls or ()
                assert call.type == "function"
                arguments = json.loads(call.function.arguments)
                assert arguments.keys() == {"stars", "mood"}
                assert 1 <= arguments["stars"] <= 5
                assert answer.choices[0].finish_reason == "tool_calls"

    in_loop(scenario)
