"""A model whose chat template has tags for thoughts: what it thinks is told apart from what it answers, streamed and
not, and a constraint, a stop string and log-probabilities are of the answer alone, whether it thinks or not."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_rig import Served, served

from loopwright.compose.model_parts import model_text
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.text.load_tokenizer import byte_tokenizer
from loopwright.text.reasoning import reasoning_tags
from system_rig import CHATML, in_loop, make_info, system_over

END = 259  # of a turn
THOUGHT = "Four? No: 42 é."
KNOWN = "{% if false %}<think></think>{% endif %}"  # a template that has the tags and writes none
TEMPLATES = {
    "model opens": CHATML + KNOWN,
    "prompt opens": CHATML.replace("assistant\n{%", "assistant\n<think>\n{%") + KNOWN,
    "prompt closes": CHATML.replace("assistant\n{%", "assistant\n<think>\n\n</think>\n\n{%") + KNOWN,
}
SAYS = {
    "model opens": f"<think>{THOUGHT}</think>\n\n42 stop",
    "prompt opens": f"<think>\n{THOUGHT}</think>\n\n42 stop",
    "prompt closes": "<think>\n\n</think>\n\n42 stop",
}
THOUGHTS = {"model opens": THOUGHT, "prompt opens": THOUGHT, "prompt closes": ""}


@asynccontextmanager
async def served_saying(template: str, *says: str) -> AsyncIterator[Served]:
    """A model whose turn is that text, if it is let: the first one that goes on from what stands there."""

    def next_token(history: tuple[int, ...]) -> int:
        written = bytes(token for token in history if token < 256).rpartition(b"assistant\n")[2]
        rest = next((one.encode()[len(written) :] for one in says if one.encode().startswith(written)), b"")
        return rest[0] if rest else END

    executor = ScriptedExecutor(next_token)
    tokenizer = byte_tokenizer(template)
    text = model_text(make_info(executor, tokenizer, "byte", has_template=True), tokenizer)
    try:
        async with system_over(executor, text) as system, served(system) as client:
            yield client
    finally:
        executor.close()


async def whole(client: Served, **options: Any) -> dict[str, Any]:
    body = {"model": "byte", "messages": [{"role": "user", "content": "?"}], "temperature": 0, **options}
    answer = await client.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def joined(client: Served, **options: Any) -> tuple[str, str, list[str]]:
    """Of a stream: the thoughts, the content, and which of the two came in which order."""
    body = {
        "model": "byte",
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0,
        "stream": True,
        **options,
    }
    answer = await client.http.post("/v1/chat/completions", json=body)
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
    order = [name for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)]
    return thoughts, "".join(delta.get("content", "") for delta in deltas), list(dict.fromkeys(order))


@pytest.mark.parametrize("kind", TEMPLATES)
def test_thoughts_are_told_apart_streamed_and_not(kind: str) -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES[kind], SAYS[kind]) as client:
            answer = await whole(client)
            message = answer["choices"][0]["message"]
            assert message["content"] == "42 stop"
            assert message.get("reasoning_content", "").strip() == THOUGHTS[kind]
            assert answer["choices"][0]["finish_reason"] == "stop"
            num_reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            assert (num_reasoning > 0) == bool(THOUGHTS[kind])
            assert answer["usage"]["completion_tokens"] > num_reasoning
            thoughts, content, order = await joined(client)
            assert (thoughts.strip(), content) == (THOUGHTS[kind], "42 stop")
            assert order == ["reasoning_content", "content"][not THOUGHTS[kind] :]

    in_loop(scenario)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_constraint_stop_and_logprobs_are_of_the_answer(kind: str) -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES[kind], SAYS[kind]) as client:
            answer = await whole(client, guided_choice=["42 yes", "7"], logprobs=True)
            message = answer["choices"][0]["message"]
            assert message["content"] == "42 yes"
            assert message.get("reasoning_content", "").strip() == THOUGHTS[kind]
            tokens = [one["token"] for one in answer["choices"][0]["logprobs"]["content"]]
            assert "".join(tokens) == "42 yes"
            stopped = (await whole(client, stop=["42 s", "No:"]))["choices"][0]
            assert stopped["stop_reason"] == "42 s"
            assert stopped["message"]["content"] == ""
            assert stopped["message"].get("reasoning_content", "").strip() == THOUGHTS[kind]

    in_loop(scenario)


def test_thoughts_that_are_cut_end_with_length_and_no_content() -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES["model opens"], SAYS["model opens"]) as client:
            for max_tokens in (3, 7, 8, 12, 20, 31):
                answer = await whole(client, max_tokens=max_tokens)
                (choice,) = answer["choices"]
                assert choice["finish_reason"] == "length"
                assert choice["message"]["content"] == ""
                assert THOUGHT.startswith(choice["message"].get("reasoning_content", ""))
                assert answer["usage"]["completion_tokens"] <= max_tokens

    in_loop(scenario)


def test_a_model_that_does_not_think_though_it_could_just_answers() -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES["model opens"], "No <think>ing</think> here") as client:
            message = (await whole(client))["choices"][0]["message"]
            assert message["content"] == "No <think>ing</think> here"
            assert "reasoning_content" not in message
            assert (await joined(client))[:2] == ("", "No <think>ing</think> here")

    in_loop(scenario)


def test_every_choice_thinks_for_itself() -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES["prompt opens"], SAYS["prompt opens"]) as client:
            answer = await whole(client, n=3)
            messages = [choice["message"] for choice in answer["choices"]]
            assert [message["content"] for message in messages] == ["42 stop"] * 3
            assert [message["reasoning_content"] for message in messages] == [THOUGHT] * 3

    in_loop(scenario)


def test_tags_are_those_that_the_template_has_as_text() -> None:
    assert reasoning_tags(TEMPLATES["model opens"], {}) == ("<think>", "</think>")
    assert reasoning_tags("a [THINK] b [/THINK]", {}) == ("[THINK]", "[/THINK]")
    assert reasoning_tags("a [THINK] b [/THINK]", {"[THINK]": 3}) is None
    assert reasoning_tags(CHATML, {}) is None
    assert reasoning_tags("<think>", {}) is None


SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
SWITCHED = CHATML.replace("assistant\n{%", f"assistant\n{SWITCH}{{%") + KNOWN
OFF: tuple[dict[str, Any], ...] = (
    {"enable_thinking": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "none"},
)
ON: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}})


@pytest.mark.parametrize("constraint", [{}, {"guided_choice": ["42 yes", "7"]}, {"return_token_ids": True}])
def test_a_template_that_can_is_told_whether_to_think(constraint: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with served_saying(SWITCHED, SAYS["model opens"], SAYS["prompt closes"]) as client:
            for options, thoughts in [*((one, THOUGHT) for one in ON), *((one, "") for one in OFF)]:
                answer = await whole(client, **options, **constraint)
                message = answer["choices"][0]["message"]
                assert message.get("reasoning_content", "") == thoughts
                assert message["content"] == ("42 yes" if "guided_choice" in constraint else "42 stop")
                assert (await joined(client, **options, **constraint))[:2] == (thoughts, message["content"])
                body = {"model": "byte", "messages": [{"role": "user", "content": "?"}], **options}
                rendered = await client.http.post("/v1/chat/completions/render", json=body)
                assert rendered.json()["text"].endswith("</think>\n\n") == (not thoughts)
                if prompt := answer.get("prompt_token_ids"):
                    assert prompt == rendered.json()["token_ids"]

    in_loop(scenario)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"enable_thinking": False}, "enable_thinking"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_a_template_that_cannot_is_told_nothing(options: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with served_saying(TEMPLATES["model opens"], SAYS["model opens"]) as client:
            body = {"model": "byte", "messages": [{"role": "user", "content": "?"}], **options}
            answer = await client.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == field
        async with served_saying(SWITCHED, SAYS["model opens"]) as client:
            body = {"model": "byte", "messages": [{"role": "user", "content": "?"}], "reasoning_effort": "low"}
            assert (await client.http.post("/v1/chat/completions", json=body)).json()["error"][
                "param"
            ] == "reasoning_effort"

    in_loop(scenario)


NOON = {"type": "function", "function": {"name": "noon", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "noon", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_model_thinks_and_then_calls(choice: str) -> None:
    options: dict[str, Any] = {"tools": [NOON], "tool_choice": choice}
    turns = [f"<think>{THOUGHT}{CALL}</think>\n\n{CALL}", f"<think>\n\n</think>\n\n{CALL}"]

    async def scenario() -> None:
        async with served_saying(SWITCHED, *turns) as client:
            for switch, thoughts in (({}, THOUGHT + CALL), ({"enable_thinking": False}, "")):
                answer = await whole(client, **options, **switch)
                (told,) = answer["choices"]
                assert told["message"].get("reasoning_content", "") == thoughts
                assert (told["message"]["content"], told["finish_reason"]) == (None, "tool_calls")
                (call,) = told["message"]["tool_calls"]
                assert call["function"] == {"name": "noon", "arguments": "{}"}
                assert (await joined(client, **options, **switch))[:2] == (thoughts, "")

    in_loop(scenario)
