"""A fork that is given up while its pages are being shared: the context it came from knows that they are."""

import asyncio

from system_rig import byte_system, in_loop

BODY = """
import asyncio
from loopwright import Context

async def main(prompt: str) -> bool:
    ctx = Context()
    ctx.append(prompt)
    await ctx.generate(max_tokens=1, ignore_eos=True)
    forking = asyncio.create_task(ctx.fork())
    await asyncio.sleep(0)
    forking.cancel()
    is_given_up = False
    try:
        await forking
    except asyncio.CancelledError:  # the task keeps what the fork had by then
        is_given_up = True
    await ctx.truncate(20)
    await ctx.generate(max_tokens=3, ignore_eos=True)
    return is_given_up
"""


def test_a_context_goes_on_where_a_fork_of_it_was_given_up() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            done = await asyncio.wait_for(system.run(BODY, "native", prompt="abcdefgh" * 9), 20)
            assert done.final.code == "ok", done.final
            assert done.result is True

    in_loop(scenario)
