"""The older names of tools in chat completions, `functions` and `function_call`: honoured as OpenAI documents them, by
the same run as tools, and told as they always were."""

import json
from typing import Any

import pytest
from http_rig import Served
from tools_rig import ASK, TOOLS, fed, hermes, saying

from system_rig import in_loop

FUNCTIONS = [one["function"] for one in TOOLS]
CALL = {"name": "weather", "arguments": '{"city": "Bern", "days": 2}'}
SAYS = "I look." + hermes("weather", city="Bern", days=2)


async def ask(client: Served, **more: Any) -> Any:
    """The one choice, once it is seen that a stream comes to the same."""
    given: Any = {"model": "byte", "messages": ASK, "functions": FUNCTIONS, "temperature": 0, **more}
    choice = (await client.openai.chat.completions.create(**given)).choices[0]
    stream = await client.openai.chat.completions.create(**given, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert not [one for one in chunks if one.delta.tool_calls]
    assert "".join(one.delta.content or "" for one in chunks) == (choice.message.content or "")
    parts = [one.delta.function_call for one in chunks if one.delta.function_call is not None]
    whole = choice.message.function_call
    assert "".join(one.name or "" for one in parts) == ("" if whole is None else whole.name)
    assert "".join(one.arguments or "" for one in parts) == ("" if whole is None else whole.arguments)
    assert chunks[-1].finish_reason == choice.finish_reason
    return choice


@pytest.mark.parametrize(
    ("says", "choice", "content", "is_call", "reason"),
    [
        (SAYS, "auto", "I look.", True, "function_call"),
        (f"{SAYS}\n{hermes('noon')}", None, "I look.", True, "function_call"),
        ("Rain.", None, "Rain.", False, "stop"),
        ("Rain.", "none", "Rain.", False, "stop"),
        (hermes("weather", city="Bern", days=2), {"name": "weather"}, None, True, "function_call"),
    ],
)
def test_a_call_is_told_as_function_call(says: str, choice: Any, content: Any, is_call: bool, reason: str) -> None:
    async def scenario() -> None:
        async with saying(says) as client:
            answer = await ask(client, **({} if choice is None else {"function_call": choice}))
            assert (answer.message.content, answer.finish_reason) == (content, reason)
            assert answer.message.tool_calls is None
            assert answer.message.function_call is None or answer.message.function_call.model_dump() == CALL
            assert (answer.message.function_call is not None) == is_call

    in_loop(scenario)


def test_a_result_goes_back_by_the_function_s_name_and_the_model_sees_what_tools_would_show_it() -> None:
    async def scenario() -> None:
        prompts = []
        call = {"id": "call_1", "type": "function", "function": CALL}
        for tools, called, result in (
            ({"functions": FUNCTIONS}, {"function_call": CALL}, {"role": "function", "name": "weather"}),
            ({"tools": TOOLS}, {"tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1"}),
        ):
            async with saying(SAYS, "Rain.") as client:
                messages = [
                    *ASK, {"role": "assistant", "content": "I look.", **called}, {**result, "content": "wet"},
                ]  # fmt: skip
                body: Any = {"model": "byte", "messages": messages, "temperature": 0, **tools}
                answer = (await client.http.post("/v1/chat/completions", json=body)).json()
                assert answer["choices"][0]["message"]["content"] == "Rain."
                prompts.append(fed(client))
        assert prompts[0] == prompts[1]
        assert json.dumps(FUNCTIONS[0]["parameters"]) in prompts[0]

    in_loop(scenario)


def test_a_cut_call_ends_with_length() -> None:
    async def scenario() -> None:
        async with saying(SAYS) as client:
            answer = await ask(client, max_tokens=75)
            assert answer.finish_reason == "length"
            assert CALL["arguments"].startswith(answer.message.function_call.arguments)

    in_loop(scenario)
