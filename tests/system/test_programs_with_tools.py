"""Programs as models that answer with calls of the client's tools: their messages, their tools and their results go in,
and calls come out, streamed and not, through the openai package."""

import json
from typing import Any

import pytest
from tools_rig import ASK, TOOLS, fed, hermes, saying

from system_rig import in_loop

SOURCE = """
from loopwright import Context, client_tool, emit, emit_text, emit_tool_call

async def main(messages: list, tools: list = [], metadata: dict = {}):
    emit({"type": "progress", "of": metadata})  # nobody's
    ctx = Context()
    ctx.messages(messages)
    turn = await ctx.generate(tools=[client_tool(one) for one in tools])
    emit_text(turn.prose)
    for call in turn.tool_calls:
        emit_tool_call(call.name, call.arguments, id=metadata.get("id", ""))
    return "nothing"
"""


CALLER = """
from loopwright import emit_tool_call

async def main(x: str = ""):
    emit_tool_call("f", {})
    return 3
"""


@pytest.mark.wasm
def test_a_program_as_a_model_calls_the_client_s_tools_and_takes_the_results() -> None:
    async def scenario() -> None:
        async with saying(f"I look.{hermes('weather', city='Zürich', days=2)}", "Rain.") as client:
            assert (await client.http.post("/v1/programs", json={"name": "agent", "source": SOURCE})).is_success
            given: Any = {"model": "program:agent", "messages": ASK, "tools": TOOLS}
            answer = await client.openai.chat.completions.create(**given)
            (choice,) = answer.choices
            assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
            (call,) = choice.message.tool_calls or ()
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == (
                "weather",
                {"city": "Zürich", "days": 2},
            )

            async with client.openai.chat.completions.stream(**given, metadata={"id": "mine"}) as stream:
                streamed = (await stream.get_final_completion()).choices[0]
            (same,) = streamed.message.tool_calls or ()
            assert (same.function.name, same.function.arguments) == (call.function.name, call.function.arguments)
            assert (same.id, streamed.finish_reason, streamed.message.content) == ("mine", "tool_calls", "I look.")

            result: Any = {"role": "tool", "tool_call_id": call.id, "content": "wet"}
            messages = [*ASK, choice.message.model_dump(exclude_none=True), result]
            last = await client.openai.chat.completions.create(**{**given, "messages": messages})
            assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("Rain.", "stop")
            assert hermes("weather", city="Zürich", days=2) + "<|im_end|>\n<|im_start|>tool\nwet<|im_end|>" in fed(
                client
            )

    in_loop(scenario)


@pytest.mark.wasm
def test_a_call_alone_is_an_answer_and_what_the_program_returns_is_not() -> None:
    async def scenario() -> None:
        async with saying("") as client:
            assert (await client.http.post("/v1/programs", json={"name": "caller", "source": CALLER})).is_success
            answer = await client.openai.chat.completions.create(model="program:caller", messages=ASK)
            assert answer.choices[0].message.content is None
            assert [one.id for one in answer.choices[0].message.tool_calls or ()] == [f"call_{answer.id[9:]}_0_0"]
            async with client.openai.chat.completions.stream(model="program:caller", messages=ASK) as stream:
                streamed = (await stream.get_final_completion()).choices[0]
            assert not streamed.message.content
            assert len(streamed.message.tool_calls or ()) == 1

    in_loop(scenario)
