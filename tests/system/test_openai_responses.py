"""The openai package's `client.responses` against the real server over the byte model: every answer and every event is
of OpenAI's form, a response is what the same chat completion says, and each tenant has its own."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from http_rig import Served, served
from pydantic import BaseModel, Field
from starlette.requests import HTTPConnection
from test_case_e1_tool_calls import NASTY, TWO
from test_reasoning import SAYS, TEMPLATES, THOUGHTS, served_saying
from tools_rig import NOON, WEATHER, fed, hermes, saying

from loopwright.core.ids import TenantId
from system_rig import byte_system, in_loop, until

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from openai_spec import check, check_event

LOGPROBS: Any = ["message.output_text.logprobs"]


class Person(BaseModel):
    color: Literal["red", "green"]
    age: int = Field(ge=1, le=5)


async def events_of(client: Served, **body: Any) -> list[dict[str, Any]]:
    answer = await client.http.post("/v1/responses", json={"model": "byte", "input": "Hi", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    events = [json.loads(one.partition("data: ")[2]) for one in answer.text.split("\n\n") if one]
    for event in events:
        check_event(event)
    return events


CASES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 1, "stop": "e", "frequency_penalty": 1},
    {"seed": 2, "include": LOGPROBS, "top_logprobs": 3, "ignore_eos": True},
    {"seed": 3, "text": {"format": {"type": "json_object"}}},
    {
        "input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "instructions": "c",
        "seed": 4,
    },
]


@pytest.mark.parametrize("options", CASES)
def test_a_response_says_what_the_chat_says_whole_and_streamed(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"max_output_tokens": 20, **options}
            whole = (await client.http.post("/v1/responses", json={"model": "byte", "input": "Hi", **body})).json()
            check("Response", whole)
            events = await events_of(client, **body)
            streamed = events[-1]["response"]
            rendered = options.get("input", [{"role": "user", "content": "Hi"}])
            if "instructions" in options:
                rendered = [{"role": "system", "content": options["instructions"]}, *rendered]
            same = {
                name: options[name]
                for name in ("temperature", "seed", "stop", "frequency_penalty", "ignore_eos")
                if name in options
            }
            if "text" in options:
                same["response_format"] = options["text"]["format"]
            chat = {"model": "byte", "messages": rendered, "max_tokens": 20, **same}
            said = (await client.http.post("/v1/chat/completions", json=chat)).json()
            text = said["choices"][0]["message"]["content"]
            for response in (whole, streamed):
                assert response["output"][0]["content"][0]["text"] == text
                is_cut = said["choices"][0]["finish_reason"] == "length"
                assert response["status"] == ("incomplete" if is_cut else "completed")
                assert response["usage"]["output_tokens"] == said["usage"]["completion_tokens"]
            deltas = [event for event in events if event["type"] == "response.output_text.delta"]
            assert "".join(event["delta"] for event in deltas) == text
            logprobs = [one["token"] for event in deltas for one in event["logprobs"]]
            assert logprobs == [one["token"] for one in whole["output"][0]["content"][0]["logprobs"]]
            assert bool(logprobs) == ("include" in options)

    in_loop(scenario)


def test_parse_gives_an_object_of_the_class_whole_and_streamed() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            asked: Any = {"model": "byte", "input": "Hi", "text_format": Person, "extra_body": {"seed": 3}}
            whole = await client.openai.responses.parse(**asked)
            async with client.openai.responses.stream(**asked) as stream:
                final = await stream.get_final_response()
            assert whole.output_parsed is not None
            assert final.output_parsed == whole.output_parsed

    in_loop(scenario)


def test_going_on_from_a_response_runs_only_what_is_new() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            create = client.openai.responses.create
            first = await create(model="byte", input="x" * 200, max_output_tokens=20, temperature=0)
            chained = await create(
                model="byte", input="more", previous_response_id=first.id, max_output_tokens=20, temperature=0
            )
            resent: list[Any] = [
                {"role": "user", "content": "x" * 200},
                *first.output,
                {"role": "user", "content": "more"},
            ]
            whole = await create(model="byte", input=resent, max_output_tokens=20, temperature=0)
            assert chained.output_text == whole.output_text
            assert chained.usage is not None
            assert chained.usage.input_tokens_details.cached_tokens > 200

    in_loop(scenario)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_what_a_model_thinks_is_an_item_of_its_own(kind: str) -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES[kind], SAYS[kind]) as client:
            events = await events_of(client, temperature=0)
            *thoughts, message = events[-1]["response"]["output"]
            assert message["content"][0]["text"].strip() == "42 stop"
            assert "".join(one["content"][0]["text"] for one in thoughts).strip() == THOUGHTS[kind].strip()
            count = events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"]
            assert bool(count) == bool(THOUGHTS[kind])

    in_loop(scenario)


def test_one_tenant_s_response_is_nobody_else_s() -> None:
    def tenant_of(connection: HTTPConnection) -> TenantId:
        return TenantId(connection.headers.get("x-tenant", ""))

    async def scenario() -> None:
        async with byte_system() as system, served(system, tenant_of) as client:
            a, b = ({"x-tenant": name} for name in "ab")
            made = await client.openai.responses.create(model="byte", input="Hi", max_output_tokens=2, extra_headers=a)
            mine = await client.openai.responses.retrieve(made.id, extra_headers=a)
            assert mine.output_text == made.output_text
            with pytest.raises(openai.NotFoundError):
                await client.openai.responses.retrieve(made.id, extra_headers=b)
            with pytest.raises(openai.NotFoundError):
                await client.openai.responses.create(
                    model="byte", input="Hi", previous_response_id=made.id, extra_headers=b
                )

    in_loop(scenario)


FUNCTIONS: Any = [{"type": "function", **tool["function"]} for tool in (WEATHER, NOON)]
CALL = ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def test_calls_are_items_with_events_of_their_own() -> None:
    async def scenario() -> None:
        async with saying(TWO) as client:
            events = await events_of(client, tools=FUNCTIONS, temperature=0)
            body = {"model": "byte", "input": "Hi", "tools": FUNCTIONS, "temperature": 0}
            whole = (await client.http.post("/v1/responses", json=body)).json()
            check("Response", whole)
            for response in (events[-1]["response"], whole):
                text, *calls = response["output"]
                assert text["content"][0]["text"] == "I look.\n"
                found = [(one["type"], one["name"], json.loads(one["arguments"]), one["status"]) for one in calls]
                assert found == [
                    ("function_call", "weather", {"city": NASTY, "days": 2}, "completed"),
                    ("function_call", "noon", {}, "completed"),
                ]
                assert response["status"] == "completed"
            told = [event for event in events if event.get("output_index") == 1]
            kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in told))
            assert kinds == ["output_item.added", *CALL]
            assert told[0]["item"]["arguments"] == ""
            deltas = [event["delta"] for event in told if event["type"].endswith(".delta")]
            assert len(deltas) > 3
            assert "".join(deltas) == told[-2]["arguments"] == told[-1]["item"]["arguments"]

    in_loop(scenario)


@pytest.mark.parametrize("is_chained", [False, True])
def test_results_of_calls_go_back_to_the_model(is_chained: bool) -> None:
    async def scenario() -> None:
        async with saying(TWO, "Rain.") as client:
            create = client.openai.responses.create
            first = await create(model="byte", input="Z?", tools=FUNCTIONS, temperature=0)
            calls = [one for one in first.output if one.type == "function_call"]
            results: list[Any] = [
                {"type": "function_call_output", "call_id": one.call_id, "output": f"result of {one.name}"}
                for one in calls
            ]
            asked: list[Any] = [{"role": "user", "content": "Z?"}, *first.output]
            more: Any = {"previous_response_id": first.id} if is_chained else {}
            second = await create(
                model="byte", input=results if is_chained else asked + results, tools=FUNCTIONS, temperature=0, **more
            )
            assert second.output_text == "Rain."
            assert "<|im_start|>tool\nresult of weather<|im_end|>\n<|im_start|>tool\nresult of noon" in fed(client)

    in_loop(scenario)


def test_a_call_that_is_cut_is_incomplete() -> None:
    async def scenario() -> None:
        async with saying(hermes("weather", city="x" * 50, days=2)) as client:
            events = await events_of(client, tools=FUNCTIONS, temperature=0, max_output_tokens=60)
            (call,) = events[-1]["response"]["output"]
            assert (events[-1]["type"], call["status"]) == ("response.incomplete", "incomplete")
            assert call["arguments"]

    in_loop(scenario)


def test_a_strict_schema_that_cannot_be_held_is_refused_by_its_place() -> None:
    odd = {"type": "object", "properties": {"x": {"type": "array", "contains": {}}}}

    async def scenario() -> None:
        async with saying("x") as client:
            tools = [{"type": "function", "name": "odd", "parameters": odd, "strict": True}]
            body = {"model": "byte", "input": "Hi", "tools": tools}
            answer = await client.http.post("/v1/responses", json=body)
            assert answer.json()["error"]["param"] == "tools[0].parameters#/properties/x/contains"

    in_loop(scenario)


def test_a_response_in_the_background_is_the_one_that_would_have_been_waited_for() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            create, retrieve = client.openai.responses.create, client.openai.responses.retrieve
            asked: Any = {"model": "byte", "input": "Hi", "max_output_tokens": 30, "extra_body": {"seed": 5}}
            waited_for = await create(**asked)
            begun = await create(**asked, background=True)

            async def has_ended() -> bool:
                return (await retrieve(begun.id)).status != "in_progress"

            await until(has_ended)
            made = await retrieve(begun.id)
            assert (made.status, made.output_text) == (waited_for.status, waited_for.output_text)
            whole = [event async for event in await retrieve(begun.id, stream=True)]
            for event in whole:
                check_event(event.to_dict())
            part = [event async for event in await retrieve(begun.id, stream=True, starting_after=4)]
            assert part == whole[5:]
            assert whole[-1].response.output_text == made.output_text  # type: ignore[union-attr]
            assert sum(event.type == "response.output_text.delta" for event in whole) > 3

    in_loop(scenario)


def test_one_in_the_background_goes_on_without_its_client_and_ends_when_it_is_cancelled() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"model": "byte", "input": "Hi", "background": True, "stream": True, "ignore_eos": True}
            async with client.http.stream("POST", "/v1/responses", json=body) as answer:
                first = await anext(answer.aiter_text())
                system.executor.hold()  # type: ignore[attr-defined]
            response_id = json.loads(first.partition("data: ")[2].partition("\n")[0])["response"]["id"]
            assert (await client.openai.responses.retrieve(response_id)).status == "in_progress"
            cancelling = asyncio.create_task(client.openai.responses.cancel(response_id))
            system.executor.release()  # type: ignore[attr-defined]
            assert (await cancelling).status == "cancelled"

    in_loop(scenario)


@pytest.mark.parametrize("max_tokens", [None, 40])
def test_the_oldest_messages_are_left_out_on_request_and_only_then(max_tokens: int | None) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            size = system.text.info.max_context
            room = size - (max_tokens or size // 4)
            said: list[Any] = [{"role": "user", "content": f"{number:02} {'x' * (size // 10)}"} for number in range(12)]
            body = {"model": "byte", "input": said, "instructions": "STAY", "temperature": 0, "store": False}
            if max_tokens is not None:
                body["max_output_tokens"] = max_tokens
            refused = await client.http.post("/v1/responses", json=body)
            assert refused.json()["error"]["code"] == "context_length_exceeded"
            answer = await client.http.post("/v1/responses", json={**body, "truncation": "auto"})
            assert answer.json()["truncation"] == "auto"
            num_tokens = answer.json()["usage"]["input_tokens"]
            counts = [
                (await client.openai.responses.input_tokens.count(input=said[first:], instructions="STAY")).input_tokens
                for first in range(12)
            ]
            assert num_tokens == max(count for count in counts if count <= room)
            asked = {**body, "input": said[counts.index(num_tokens) :]}
            same = await client.http.post("/v1/responses", json=asked)
            assert same.json()["output"][0]["content"] == answer.json()["output"][0]["content"]

    in_loop(scenario)


def test_what_fits_is_left_whole_and_a_result_never_stands_without_its_call() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "noon", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "12"}

    async def scenario() -> None:
        async with saying("Fine.") as client:
            size = client.system.text.info.max_context
            for num_chars, is_whole in ((10, True), (size - 250, False)):
                said: list[Any] = [
                    {"role": "user", "content": "Z" * num_chars},
                    call,
                    result,
                    {"role": "user", "content": "So?"},
                ]
                before = fed(client)
                answer = await client.openai.responses.create(
                    model="byte", input=said, truncation="auto", max_output_tokens=20, temperature=0
                )
                new = fed(client)[len(before) :]
                assert answer.output_text == "Fine."
                assert ("Z" * num_chars in new) == is_whole
                assert ("<|im_start|>tool" in new) == ("<tool_call>" in new)

    in_loop(scenario)
