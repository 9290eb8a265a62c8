"""An answer that goes on with the last message: a chat's continue_final_message and the prefill of Anthropic's API run
the same tokens as if the model had written them, and give only what is new. And a stream that says that it has begun
before the model has."""

import asyncio
import json
from typing import Any

import pytest
from http_rig import Served
from tools_rig import ASK, TOOLS, fed, saying

from loopwright.engine.scripted import ScriptedExecutor
from system_rig import CHATML, in_loop

BEGUN = [*ASK, {"role": "assistant", "content": "The sky"}]
SAYS = "The sky is grey."
THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}") + "{# <think></think> #}"


async def posted(client: Served, path: str, **body: Any) -> Any:
    answer = await client.http.post(path, json={"model": "byte", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("template", [CHATML, THINKING], ids=["plain", "thinking"])
def test_an_answer_goes_on_with_the_last_message_on_both_routes_streamed_and_not(template: str) -> None:
    async def scenario() -> None:
        async with saying(SAYS, template=template) as client:
            given: dict[str, Any] = {"messages": BEGUN, "continue_final_message": True}
            chat = (await posted(client, "/v1/chat/completions", **given)).json()["choices"][0]
            assert (chat["message"]["content"], chat["finish_reason"]) == (" is grey.", "stop")
            ran = fed(client)
            assert ran.startswith("<|bos|><|im_start|>user\nZürich?<|im_end|>\n<|im_start|>assistant\nThe sky is grey.")
            rendered = (await posted(client, "/v1/chat/completions/render", **given)).json()["text"]
            assert ran.startswith(rendered)
            assert rendered.endswith("assistant\nThe sky")
            stream = (await posted(client, "/v1/chat/completions", **given, stream=True)).text
            deltas = [json.loads(one[6:])["choices"][0]["delta"] for one in stream.split("\n\n") if "{" in one]
            assert "".join(delta.get("content", "") for delta in deltas) == " is grey."

            for content in ("The sky", [{"type": "text", "text": "The"}, {"type": "text", "text": " sky"}]):
                messages = [*ASK, {"role": "assistant", "content": content}]
                asked: Any = {"model": "byte", "max_tokens": 50, "messages": messages}
                message = await client.anthropic.messages.create(**asked)
                assert [(one.type, getattr(one, "text", "")) for one in message.content] == [("text", " is grey.")]
                num_prompt = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
                async with client.anthropic.messages.stream(**asked) as events:
                    assert await events.get_final_text() == " is grey."
            count = await client.anthropic.messages.count_tokens(model="byte", messages=messages)
            assert count.input_tokens == num_prompt
            ids = (await posted(client, "/v1/chat/completions/render", **given)).json()["token_ids"]
            assert num_prompt == len(ids)

    in_loop(scenario)


def test_without_a_generation_prompt_the_model_opens_its_turn_itself() -> None:
    async def scenario() -> None:
        async with saying("x", opening="<none>") as client:
            given: dict[str, Any] = {"messages": ASK, "add_generation_prompt": False, "max_tokens": 1}
            rendered = (await posted(client, "/v1/chat/completions/render", **given)).json()["text"]
            assert rendered == "<|bos|><|im_start|>user\nZürich?<|im_end|>\n"
            await posted(client, "/v1/chat/completions", **given)
            assert fed(client) == rendered

    in_loop(scenario)


def test_tools_and_forms_hold_on_what_is_new() -> None:
    async def scenario() -> None:
        async with saying('The sky{"a": 1}') as client:
            schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
            given: Any = {"messages": BEGUN, "continue_final_message": True, "tools": TOOLS, "guided_json": schema}
            answer = (await posted(client, "/v1/chat/completions", **given)).json()["choices"][0]
            assert answer["message"]["content"] == '{"a": 1}'

    in_loop(scenario)


BODIES = {
    "/v1/responses": {"input": "Zürich?", "store": False},
    "/v1/messages": {"messages": ASK, "max_tokens": 20},
}


@pytest.mark.parametrize("more", [{}, {"tools": []}, {"temperature": 0.5}])
@pytest.mark.parametrize("path", BODIES)
def test_a_stream_has_begun_before_the_model_has(path: str, more: Any) -> None:
    async def scenario() -> None:
        async with saying(SAYS) as client:
            executor = client.system.executor
            assert isinstance(executor, ScriptedExecutor)
            executor.hold()
            body = {"model": "byte", "stream": True, **BODIES[path], **more}
            async with client.http.stream("POST", path, json=body) as answer:
                assert answer.status_code == 200
                lines = answer.aiter_lines()
                first = [json.loads((await _data(lines))[6:]) for _ in range(2)]
                executor.release()
                rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")]
        if path == "/v1/responses":
            assert [one["type"] for one in first] == ["response.created", "response.in_progress"]
            assert [one["sequence_number"] for one in [*first, *rest]] == list(range(len(rest) + 2))
            return
        assert [one["type"] for one in first] == ["message_start", "ping"]
        (end,) = [one["usage"] for one in rest if one["type"] == "message_delta"]
        usage = first[0]["message"]["usage"]
        assert usage["input_tokens"] == end["input_tokens"] + end["cache_read_input_tokens"] > 0
        assert usage["output_tokens"] == 0

    in_loop(scenario)


async def _data(lines: Any) -> str:
    while not (line := await anext(lines)).startswith("data: "):
        pass
    return str(line)


@pytest.mark.parametrize("path", BODIES)
def test_what_is_wrong_with_a_stream_before_its_text_is_a_status(path: str) -> None:
    long: Any = "x" * 5000
    body = {"model": "byte", "stream": True, **BODIES[path]}
    body["input" if path == "/v1/responses" else "messages"] = (
        long if path == "/v1/responses" else [{"role": "user", "content": long}]
    )
    odd = {"type": "object", "properties": {"a": {"contains": {}}}}
    tool = {"name": "f", "strict": True}
    tool |= {"input_schema": odd} if path == "/v1/messages" else {"type": "function", "parameters": odd}

    async def scenario() -> None:
        async with saying(SAYS) as client:
            for wrong in (body, {"model": "byte", "stream": True, **BODIES[path], "tools": [tool]}):
                assert (await client.http.post(path, json=wrong)).status_code == 400

    in_loop(scenario)


def test_a_client_that_goes_before_the_first_text_ends_its_run() -> None:
    async def scenario() -> None:
        async with saying(SAYS) as client:
            executor = client.system.executor
            assert isinstance(executor, ScriptedExecutor)
            executor.hold()
            body = {"model": "byte", "stream": True, **BODIES["/v1/responses"]}
            async with client.http.stream("POST", "/v1/responses", json=body) as answer:
                await _data(answer.aiter_lines())
            (run,) = await client.system.launcher.runs()
            while run.state == "running":
                executor.release()
                await asyncio.sleep(0)
                (run,) = await client.system.launcher.runs()
            assert run.code == "cancelled"

    in_loop(scenario)
