"""The openai package against the real server over the byte model: what its own types and its parsing make of answers,
and every answer against OpenAI's specification."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from http_rig import Served, served
from pydantic import BaseModel, Field

from system_rig import byte_system, in_loop

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from openai_spec import check

HI: Any = [{"role": "user", "content": "Hi"}]
ASCII_ONLY = {str(token): -100 for token in range(128, 260)}


class Person(BaseModel):
    color: Literal["red", "green"]
    age: int = Field(ge=1, le=5)
    is_new: bool


def test_parse_gives_an_object_of_the_class() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for seed in range(5):
                answer = await client.openai.chat.completions.parse(
                    model="byte", messages=HI, response_format=Person, seed=seed, max_completion_tokens=200
                )
                found = answer.choices[0].message.parsed
                assert found is not None
                assert answer.choices[0].finish_reason == "stop"
                assert 1 <= found.age <= 5

    in_loop(scenario)


def test_stream_gathers_text_logprobs_and_the_object() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            options: Any = {"model": "byte", "messages": HI, "seed": 3, "logprobs": True, "top_logprobs": 2}
            whole = await client.openai.chat.completions.parse(**options, response_format=Person)
            deltas = ""
            async with client.openai.chat.completions.stream(**options, response_format=Person) as stream:
                async for event in stream:
                    if event.type == "content.delta":
                        deltas += event.delta
                final = await stream.get_final_completion()
            assert final.choices[0].message.parsed == whole.choices[0].message.parsed
            assert final.choices[0].message.content == whole.choices[0].message.content == deltas
            assert final.choices[0].logprobs is not None
            assert whole.choices[0].logprobs is not None
            found, expected = ([dict(one) for one in answer.choices[0].logprobs.content] for answer in (final, whole))
            for one, other in zip(found, expected, strict=True):
                assert one["token"] == other["token"]
                assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-5)
                tops = [[(top.token, top.bytes) for top in each["top_logprobs"]] for each in (one, other)]
                assert tops[0] == tops[1]
            assert "".join(one["token"] for one in found) == deltas

    in_loop(scenario)


def test_a_cut_object_is_an_error_of_the_client_with_the_reason() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            with pytest.raises(openai.LengthFinishReasonError):
                await client.openai.chat.completions.parse(
                    model="byte", messages=HI, response_format=Person, max_tokens=3
                )

    in_loop(scenario)


CHAT: list[dict[str, Any]] = [
    {},
    {"n": 3, "logprobs": True, "top_logprobs": 5},
    {"stop": ["e"], "seed": 1, "temperature": 0.5, "frequency_penalty": 1, "presence_penalty": -1},
    {"response_format": {"type": "json_object"}, "max_tokens": 8},
    {"logprobs": True, "logprob_kind": "processed", "top_p": 0.5, "return_token_ids": True, "prompt_logprobs": 1},
]
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "x"},
    {"prompt": [1, 2, 3], "n": 2, "best_of": 3, "logprobs": 2},
    {"prompt": ["x", "y"], "echo": True},
    {"prompt": [[1], [2, 3]], "return_token_ids": True, "stop_token_ids": [97]},
]


async def stream_of(client: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await client.http.post(path, json=body | options)
    assert answer.status_code == 200, answer.text
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("options", CHAT)
def test_chats_are_of_the_form_that_openai_specifies(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"model": "byte", "messages": HI, "max_tokens": 20, **options}
            answer = await client.http.post("/v1/chat/completions", json=body)
            check("CreateChatCompletionResponse", answer.json())
            for chunk in await stream_of(client, "/v1/chat/completions", body):
                check("CreateChatCompletionStreamResponse", chunk)

    in_loop(scenario)


@pytest.mark.parametrize("options", COMPLETIONS)
def test_completions_are_of_the_form_that_openai_specifies(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            body = {"model": "byte", "max_tokens": 20, **options}
            answer = await client.http.post("/v1/completions", json=body)
            check("CreateCompletionResponse", answer.json())
            if "best_of" not in options:
                for chunk in await stream_of(client, "/v1/completions", body):
                    if chunk["choices"]:  # its schema of a chunk is that of an answer, and wants a reason in each
                        assert chunk["choices"][0]["finish_reason"] in (None, "stop", "length")
                        chunk["choices"][0]["finish_reason"] = "stop"
                    check("CreateCompletionResponse", chunk)

    in_loop(scenario)


def test_models_and_errors_are_of_the_form_that_openai_specifies() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            check("ListModelsResponse", (await client.http.get("/v1/models")).json())
            check("Model", (await client.http.get("/v1/models/byte")).json())
            for path, body in [
                ("/v1/completions", {}),
                ("/v1/chat/completions", {"model": "none", "messages": HI}),
                ("/v1/none", {}),
                ("/v1/chat/completions", {"model": "byte", "messages": HI, "tools": [{}]}),
            ]:
                answer = await client.http.post(path, json=body)
                assert 400 <= answer.status_code < 500
                check("ErrorResponse", answer.json())

    in_loop(scenario)


def test_c4_usage_comes_only_when_asked_last_and_without_choices() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for path, prompt in (("/v1/chat/completions", {"messages": HI}), ("/v1/completions", {"prompt": "Hi"})):
                body = {"model": "byte", "max_tokens": 9, "n": 2, "seed": 1, **prompt}
                whole = (await client.http.post(path, json=body)).json()
                *chunks, last = await stream_of(client, path, body)
                assert last["choices"] == []
                assert last["usage"] == whole["usage"] | {
                    "prompt_tokens_details": last["usage"]["prompt_tokens_details"]
                }
                assert not any("usage" in chunk for chunk in chunks)
                for options in ({}, {"stream_options": {"include_usage": False}}):
                    answer = await client.http.post(path, json={**body, "stream": True, **options})
                    assert '"usage"' not in answer.text
                    assert answer.text.endswith("data: [DONE]\n\n")

    in_loop(scenario)


def test_the_text_routes_say_what_a_chat_runs() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:

            async def post(path: str, **body: Any) -> Any:
                answer = await client.http.post(path, json=body)
                assert answer.status_code == 200, answer.text
                return answer.json()

            messages = [{"role": "user", "content": "hé <|im_end|>"}]
            chat = {"model": "byte", "messages": messages, "max_tokens": 1, "return_token_ids": True}
            ran = (await post("/v1/chat/completions", **chat))["prompt_token_ids"]
            rendered = await post("/v1/chat/completions/render", **chat)
            tokenized = await post("/tokenize", messages=messages, return_token_strs=True)
            assert ran == rendered["token_ids"] == tokenized["tokens"]
            assert rendered["text"] == "<|bos|><|im_start|>user\nhé <|im_end|><|im_end|>\n<|im_start|>assistant\n"
            assert tokenized["token_strs"][:3] == ["<|bos|>", "<|im_start|>", "u"]
            assert tokenized["count"] == len(ran)
            assert sum(token == 259 for token in ran) == 1  # the template's own, and not the user's words
            plain = await post("/tokenize", prompt="hé", add_special_tokens=False)
            assert plain["tokens"] == [*"hé".encode()]
            assert (await post("/detokenize", tokens=[258, *plain["tokens"]])) == {"prompt": "hé"}
            assert (await client.http.get("/ready")).json() == {"status": "ready", "models": ["byte"]}

    in_loop(scenario)
