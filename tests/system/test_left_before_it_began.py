"""Segments that are given up before they could start: the program goes on, and hears of nothing but what it did."""

import asyncio

from loopwright.core.calls import Sampling
from loopwright.core.events import Emit
from system_rig import System, byte_oracle, byte_system, in_loop, until

PROMPT = "Nothing has begun yet, and "
IDS = [256, *PROMPT.encode()]

HOLD = """
import asyncio
from loopwright import Context
from loopwright.sdk.resources import Queue
async def main(num_tokens: int):
    queue = Queue()
    mask = [[0, place + 1] for place in range(num_tokens)]  # so that the pages cannot be dropped
    await queue.forward_text(pages=[], grow_from=0, kv_len=0, tokens=[97] * num_tokens,
                             positions=list(range(num_tokens)), mask=mask)
    await asyncio.sleep(3600)
"""

GIVE_UP = """
import asyncio
from loopwright import Context, emit

async def watched(ctx):
    async with ctx.watch(max_tokens=6, ignore_eos=True) as watched:
        async for token in watched:
            pass

async def left(ctx):
    async with ctx.watch(max_tokens=6, ignore_eos=True) as watched:
        pass
    return [watched.turn.reason, watched.turn.tokens]

async def broken(ctx):
    async with ctx.watch(max_tokens=6, ignore_eos=True):
        raise ValueError("the program's own")

async def main(prompt: str, way: str):
    ctx, told = Context(), []
    ctx.append(prompt)
    try:
        async with asyncio.timeout(0.05):
            if way == "generate":
                await ctx.generate(max_tokens=6, ignore_eos=True)
            elif way == "flush":
                await ctx.flush()
            else:
                told += await globals()[way](ctx) or []
    except (TimeoutError, ValueError) as error:
        told.append(type(error).__name__)
    emit("gave up")
    turn = await ctx.generate(max_tokens=6, ignore_eos=True)
    return [told, turn.tokens]
"""


async def full(system: System) -> object:
    """Takes all pages for good, until it is cancelled."""
    holder = await system.start(HOLD, num_tokens=16 * 8)

    async def is_full() -> bool:
        return (await system.controller.stats()).num_free_blocks == 0

    await until(is_full)
    return holder


def test_a_program_that_gives_up_on_a_segment_that_waits_for_pages_can_go_on() -> None:
    expected = list(byte_oracle().generate(IDS, Sampling(), 6).tokens)
    told = {
        "generate": ["TimeoutError"], "flush": ["TimeoutError"], "watched": ["TimeoutError"],
        "left": ["interrupted", []], "broken": ["ValueError"],
    }  # fmt: skip

    async def scenario() -> None:
        for way, what in told.items():
            async with byte_system(num_blocks=8) as system:
                holder = await full(system)
                run = await system.start(GIVE_UP, prompt=PROMPT, way=way)
                async for event in system.launcher.events(run.run_id):
                    if isinstance(event, Emit):
                        break
                await system.launcher.cancel(holder.run_id)
                assert (await run.outcome()).result == [what, expected]

    in_loop(scenario)


def test_a_run_that_is_cancelled_ends_as_cancelled_whatever_its_program_was_in_the_middle_of() -> None:
    deaf = """
import asyncio
from loopwright import emit
async def main():
    emit("here")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise ValueError("not me")
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=8) as system:
            holder = await full(system)
            for source, arguments in (
                (GIVE_UP.replace("0.05", "60"), {"prompt": PROMPT, "way": "watched"}),
                (deaf, {}),
            ):
                run = await system.start(source, **arguments)
                for _ in range(50):
                    await asyncio.sleep(0.001)
                await system.launcher.cancel(run.run_id)
                assert (await run.outcome()).final.code == "cancelled"
            await system.launcher.cancel(holder.run_id)

    in_loop(scenario)
