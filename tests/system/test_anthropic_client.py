"""The anthropic package against the real server: every answer and event is of Anthropic's form, a message is what the
same chat completion says, tools go there and back, and thoughts keep within their budget."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from http_rig import Served, served
from pydantic import BaseModel
from test_case_e1_tool_calls import NASTY, TWO
from test_reasoning import SAYS, TEMPLATES, served_saying
from tools_rig import END_OF_TURN, NOON, WEATHER, fed, hermes, saying

from loopwright.compose.model_parts import model_text
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.text.load_tokenizer import byte_tokenizer
from system_rig import byte_system, in_loop, make_info, system_over

sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from anthropic_spec import check, check_event

HI: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in (WEATHER, NOON)
]


class Person(BaseModel):
    """Without bounds: the client leaves them out of the schema that it sends."""

    color: Literal["red", "green"]
    is_new: bool


async def whole(client: Served, **body: Any) -> dict[str, Any]:
    asked = {"model": "byte", "max_tokens": 200, "messages": HI, "temperature": 0, **body}
    answer = await client.http.post("/v1/messages", json=asked)
    assert answer.status_code == 200, answer.text
    check("Message", answer.json())
    return answer.json()  # type: ignore[no-any-return]


async def gathered(client: Served, **body: Any) -> dict[str, Any]:
    """What the client's own gathering makes of a stream whose every event is of Anthropic's form."""
    asked = {"model": "byte", "max_tokens": 200, "messages": HI, "temperature": 0, **body}
    answer = await client.http.post("/v1/messages", json={**asked, "stream": True})
    for one in answer.text.split("\n\n")[:-1]:
        check_event(json.loads(one.partition("data: ")[2]))
    known = {name: asked.pop(name) for name in ("model", "max_tokens", "messages")}
    async with client.anthropic.messages.stream(**known, extra_body=asked) as stream:
        return (await stream.get_final_message()).to_dict()


def of_content(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Blocks, less the ids of their run."""
    return [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 1, "seed": 3, "system": "Be brief.", "stop_sequences": ["e"]},
    {"temperature": 1, "seed": 4, "top_k": 5, "top_p": 0.9, "max_tokens": 8},
]


@pytest.mark.parametrize("options", CASES)
def test_a_message_says_what_the_chat_says_whole_and_streamed(options: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            options.setdefault("max_tokens", 30)
            same = {name: value for name, value in options.items() if name not in ("system", "stop_sequences")}
            system_said = [{"role": "system", "content": options["system"]}] if "system" in options else []
            chat = {"model": "byte", "messages": [*system_said, *HI], "temperature": 0, **same}
            if "stop_sequences" in options:
                chat["stop"] = options["stop_sequences"]
            said = (await client.http.post("/v1/chat/completions", json=chat)).json()["choices"][0]
            message, streamed = await whole(client, **options), await gathered(client, **options)
            for one in (message, streamed):
                assert [block["text"] for block in one["content"]] == [said["message"]["content"]]
                assert one["stop_sequence"] == said["stop_reason"]
                assert (one["stop_reason"] == "max_tokens") == (said["finish_reason"] == "length")
            used = message["usage"]
            assert used["input_tokens"] + used["cache_read_input_tokens"] > 16
            assert used["cache_read_input_tokens"] >= 16
            count = await client.anthropic.messages.count_tokens(
                model="byte", messages=HI, **({"system": options["system"]} if system_said else {})
            )
            assert count.input_tokens == used["input_tokens"] + used["cache_read_input_tokens"]

    in_loop(scenario)


def test_parse_gives_an_object_of_the_class() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            for seed in range(3):
                message = await client.anthropic.messages.parse(
                    model="byte", max_tokens=400, messages=HI, output_format=Person, extra_body={"seed": seed}
                )
                assert message.parsed_output is not None

    in_loop(scenario)


def test_tools_are_used_and_their_results_go_back() -> None:
    async def scenario() -> None:
        async with saying(TWO, "Rain.") as client:
            first, streamed = await whole(client, tools=TOOLS), await gathered(client, tools=TOOLS)
            assert of_content(first) == of_content(streamed)
            text, weather, noon = first["content"]
            assert (text["text"], weather["name"], noon["name"]) == ("I look.\n", "weather", "noon")
            assert (weather["input"], noon["input"]) == ({"city": NASTY, "days": 2}, {})
            assert first["stop_reason"] == streamed["stop_reason"] == "tool_use"
            results = [
                {"type": "tool_result", "tool_use_id": one["id"], "content": f"result of {one['name']}"}
                for one in (weather, noon)
            ]
            said = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": results}]
            second = await whole(client, tools=TOOLS, messages=[*HI, *said])
            assert second["content"][0]["text"] == "Rain."
            assert "<|im_start|>tool\nresult of weather<|im_end|>\n<|im_start|>tool\nresult of noon" in fed(client)

    in_loop(scenario)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "auto"}, ["noon", "noon"]),
        ({"type": "any", "disable_parallel_tool_use": True}, ["noon"]),
        ({"type": "tool", "name": "noon"}, ["noon"]),
        ({"type": "none"}, []),
    ],
)
def test_the_choice_among_tools_is_held(choice: Any, names: list[str]) -> None:
    async def scenario() -> None:
        says = "Just text." if choice["type"] == "none" else f"{hermes('noon')}\n{hermes('noon')}"
        async with saying(says) as client:
            message = await whole(client, tools=TOOLS, tool_choice=choice)
            assert [one["name"] for one in message["content"] if one["type"] == "tool_use"] == names

    in_loop(scenario)


def test_a_call_that_is_cut_ends_with_max_tokens() -> None:
    async def scenario() -> None:
        async with saying(hermes("weather", city="x" * 50, days=2)) as client:
            message = await whole(client, tools=TOOLS, max_tokens=60)
            assert message["stop_reason"] == "max_tokens"
            assert [(one["type"], one["input"]) for one in message["content"]] == [("tool_use", {})]

    in_loop(scenario)


@asynccontextmanager
async def thinking_without_end(template: str, opening: str) -> AsyncIterator[Served]:
    """A model that thinks until its thoughts are closed for it, and then says 42."""

    def next_token(history: Sequence[int]) -> int:
        written = bytes(one for one in history if one < 256).rpartition(b"assistant\n")[2]
        thoughts, _, answer = written.partition(b"</think>\n\n")
        if b"</think>" in written:
            return b"42"[len(answer)] if len(answer) < 2 else END_OF_TURN
        return opening.encode()[len(thoughts)] if len(thoughts) < len(opening) else ord("x")

    executor = ScriptedExecutor(next_token)
    tokenizer = byte_tokenizer(template)
    text = model_text(make_info(executor, tokenizer, "byte", has_template=True), tokenizer)
    try:
        async with system_over(executor, text) as system, served(system) as client:
            yield client
    finally:
        executor.close()


@pytest.mark.parametrize(("kind", "opening"), [("model opens", "<think>"), ("prompt opens", "")])
@pytest.mark.parametrize("num_thoughts", [1, 30])
def test_thoughts_keep_within_their_budget_and_an_answer_follows(kind: str, opening: str, num_thoughts: int) -> None:
    async def scenario() -> None:
        async with thinking_without_end(TEMPLATES[kind], opening) as client:
            thinking = {"type": "enabled", "budget_tokens": num_thoughts}
            message, streamed = await whole(client, thinking=thinking), await gathered(client, thinking=thinking)
            for one in (message, streamed):
                assert of_content(one) == [
                    {"type": "thinking", "thinking": "x" * num_thoughts, "signature": ""},
                    {"type": "text", "text": "42", "citations": None},
                ]
                assert one["stop_reason"] == "end_turn"
            used = message["usage"]["output_tokens_details"]["thinking_tokens"]
            assert used == num_thoughts + len(opening)
            cut = await whole(client, thinking=thinking, max_tokens=num_thoughts + len(opening) + 1)
            assert of_content(cut)[1]["text"] == "4"
            assert cut["stop_reason"] == "max_tokens"

    in_loop(scenario)


def test_thoughts_that_end_by_themselves_are_not_touched_by_a_budget() -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES["model opens"], SAYS["model opens"]) as client:
            thinking = {"type": "enabled", "budget_tokens": 100}
            assert of_content(await whole(client, thinking=thinking)) == of_content(await whole(client))

    in_loop(scenario)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_disabled_thinking_is_none(kind: str) -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES[kind], "42") as client:
            message = await whole(client, thinking={"type": "disabled"})
            assert [one["type"] for one in message["content"]] == ["text"]
            assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 0}

    in_loop(scenario)
