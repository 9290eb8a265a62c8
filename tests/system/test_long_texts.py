"""Text that takes long to tokenize holds up neither other calls of its program nor other programs."""

import pytest

from system_rig import byte_system, in_loop

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
