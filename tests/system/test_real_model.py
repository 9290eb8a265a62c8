"""The real default model, through the real `openai` package and a real server: it knows a capital, and its tokens are
those of the one-request loop, alone and beside eight neighbours."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from http_rig import Served, served

from loopwright.core.calls import Sampling
from loopwright.engine.oracle import Generated
from system_rig import SmolLM2, in_loop, system_over

pytestmark = pytest.mark.model

QUESTION, TASK = "What is the capital of France?", "Write a poem about the sea."
MAX_TOKENS = 20
NOISE = 1e-4  # of float32 through 30 layers: two orders of summation differ by up to that much
NEIGHBOURS = tuple(f"Tell me something about {word}." for word in ("fog", "ice", "moss", "owls", "rain", "snow", "tea"))

PROGRAM = """
from loopwright import Context
async def main(question: str, max_tokens: int):
    ctx = Context()
    ctx.user(question)
    turn = await ctx.generate(max_tokens=max_tokens)
    return [turn.tokens, turn.logprobs]
"""


@pytest.fixture(scope="module")
def oracle(smollm2: SmolLM2) -> Mapping[str, Generated]:
    """What the one-request loop answers, by question, with the token that ends the turn."""
    template, ends = smollm2.text.chat_template, smollm2.text.tokenizer.eos_ids
    assert template is not None

    def answer(content: str) -> Generated:
        prompt = template.render([{"role": "user", "content": content}], add_generation_prompt=True)
        return smollm2.oracle.generate(prompt, Sampling(), MAX_TOKENS, ends)

    return {content: answer(content) for content in (QUESTION, TASK)}


def test_an_openai_client_gets_the_oracle_s_answer_whole_and_streamed(
    smollm2: SmolLM2, oracle: Mapping[str, Generated]
) -> None:
    async def scenario() -> None:
        async with system_over(smollm2.executor, smollm2.text) as system, served(system) as client:
            assert [model.id async for model in client.openai.models.list()] == [client.model]
            assert "Paris" in await client.chat(QUESTION)
            for content, expected in oracle.items():
                whole = await client.chat(content, max_tokens=MAX_TOKENS)
                streamed = await client.stream_chat(content, max_tokens=MAX_TOKENS)
                assert whole == streamed == smollm2.text.tokenizer.decode(expected.tokens)

    in_loop(scenario)


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_program_gets_the_oracle_s_tokens(smollm2: SmolLM2, oracle: Mapping[str, Generated], sandbox: str) -> None:
    async def scenario() -> None:
        async with system_over(smollm2.executor, smollm2.text) as system:
            for content, expected in oracle.items():
                outcome = await system.run(PROGRAM, sandbox, question=content, max_tokens=MAX_TOKENS)
                tokens, logprobs = outcome.result
                assert tokens == list(expected.tokens)
                assert logprobs == pytest.approx(expected.logprobs, abs=NOISE)

    in_loop(scenario)


def test_eight_neighbours_change_nothing(smollm2: SmolLM2, oracle: Mapping[str, Generated]) -> None:
    async def scenario() -> None:
        async with system_over(smollm2.executor, smollm2.text) as system, served(system) as client:
            before = await system.controller.stats()
            outcome, text, *others = await asyncio.gather(
                system.run(PROGRAM, question=TASK, max_tokens=MAX_TOKENS),
                client.chat(QUESTION, max_tokens=MAX_TOKENS),
                *(beside(client, number, content) for number, content in enumerate(NEIGHBOURS)),
            )
            after = await system.controller.stats()
            assert outcome.result[0] == list(oracle[TASK].tokens)
            assert text == smollm2.text.tokenizer.decode(oracle[QUESTION].tokens)
            assert all(others)
            assert (after.num_rows - before.num_rows) / (after.num_steps - before.num_steps) > 4  # they did meet

    in_loop(scenario)


async def beside(client: Served, number: int, content: str) -> str:
    chat = client.stream_chat if number % 2 else client.chat
    return await chat(content, max_tokens=MAX_TOKENS, temperature=number % 3 / 2, seed=number)


def test_it_calls_a_tool_with_arguments_that_fit(smollm2: SmolLM2) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    function = {
        "name": "weather",
        "description": "What the weather is in a city.",
        "strict": True,
        "parameters": schema,
    }

    async def scenario() -> None:
        async with system_over(smollm2.executor, smollm2.text) as system, served(system) as client:
            options: Any = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
            question: Any = [{"role": "user", "content": "What is the weather in Paris, in Celsius?"}]
            given: Any = {"model": smollm2.text.info.name, "messages": question, "temperature": 0, **options}
            answer = (await client.openai.chat.completions.create(**given, parallel_tool_calls=False)).choices[0]
            assert answer.finish_reason == "tool_calls"
            (call,) = answer.message.tool_calls or ()
            assert call.type == "function"
            assert call.function.name == "weather"
            assert "Paris" in json.loads(call.function.arguments)["city"]

    in_loop(scenario)
