"""An agent that thinks, waits for a tool, reads what it said, and thinks again."""

import asyncio

from loopwright import Context


async def main(number: str, system: str, calls: int, tool_s: float, max_tokens: int) -> str:
    ctx = Context()
    ctx.system(system)
    ctx.user(f"Question {number}: which is the tallest of the towers?")
    text = ""
    for call in range(calls):
        text = (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
        await asyncio.sleep(tool_s)
        ctx.user(f"Observation: tower {call} is {100 + call} m tall.")
    return text
