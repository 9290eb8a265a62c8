"""Text that takes long to tokenize holds up neither other calls of its program nor other programs."""

from collections.abc import Coroutine

import pytest

from loopwright.core.host_calls import Message, RenderChat
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.runtime.text_calls import TextCalls
from system_rig import byte_system, byte_text, in_loop

SHORT_BEFORE_LONG = """
import asyncio
from loopwright import tokenize
async def main():
    text = "So it goes, and so on. " * 100_000
    done = []
    async def count(text):
        done.append(len(await tokenize(text)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(count(text))
        tasks.create_task(count("short"))
    return [done, len(text)]
"""

CHAT = """
from loopwright.sdk.resources import render_chat
async def main(text: str):
    messages = [{"role": "user", "content": text}]
    answer = await render_chat(messages, num_done=0, is_open=False, add_generation_prompt=True)
    return len(answer["tokens"])
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_short_text_is_answered_before_a_long_one_that_was_sent_first(sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            done, num_chars = (await system.run(SHORT_BEFORE_LONG, sandbox)).result
            assert done == [len("short"), num_chars]

    in_loop(scenario)


def test_a_long_message_is_rendered_like_a_short_one() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            few, many = [(await system.run(CHAT, text="x" * length)).result for length in (10, 10_000)]
            assert many == few + 9_990

    in_loop(scenario)


TOO_LONG = """
from loopwright import Context, ContextTooLong
from loopwright.sdk.resources import render_chat, tokenize
async def main(text: str):
    errors = []
    for add in (lambda ctx: ctx.append(text), lambda ctx: ctx.user(text)):
        ctx = Context()
        add(ctx)
        try:
            await ctx.flush()
        except ContextTooLong as error:
            errors.append(str(error))
    messages = [{"role": "user", "content": text}]
    rendered = await render_chat(messages, num_done=0, is_open=False, add_generation_prompt=True)
    return [errors, len((await tokenize(text))["tokens"]), len(rendered["tokens"])]
"""


def test_tokens_that_no_context_holds_are_refused_where_they_are_counted_and_told_to_who_only_counts() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            fitting, long = "x" * 4095, "x" * 4096
            errors, num_tokens, num_rendered = (await system.run(TOO_LONG, text=long)).result
            assert [error.count("the prompt is too long: it has ") for error in errors] == [1, 1]
            assert "it has 4097 tokens; this model's maximum context length is 4096" in errors[0]
            assert num_tokens == 4096 < num_rendered
            (alone,), _, _ = (await system.run(TOO_LONG, text=fitting)).result
            # The text alone fits; with the marks of a message it does not.
            assert "it has 4095 tokens" not in alone
            assert "it has 4096 tokens" not in alone

    in_loop(scenario)


@pytest.mark.parametrize(("num_messages", "is_at_once"), [(10, True), (500, False)])
def test_many_short_messages_take_as_long_as_one_long_one(num_messages: int, is_at_once: bool) -> None:
    call = RenderChat(messages=(Message(role="user", content="x"),) * num_messages)
    executor = ScriptedExecutor()
    try:
        answer = TextCalls(byte_text(executor)).render_chat(call)
        assert isinstance(answer, dict) == is_at_once
        if isinstance(answer, Coroutine):
            answer.close()
    finally:
        executor.close()
