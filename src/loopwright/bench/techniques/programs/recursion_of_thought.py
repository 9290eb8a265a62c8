"""Splits a task in two, solves the parts, the first by splitting it again, and joins the answers.

The rules are in the server's prefix cache after the first task, so there is nothing to gain by a fork.
"""

# /// program
# limits = { seconds = 3600 }
# ///

import asyncio

from loopwright import Context


async def main(number: str, system: str, depth: int, max_tokens: int) -> str:
    return await solve(system, f"What is {number} times 123?", depth, max_tokens)


async def solve(rules: str, task: str, depth: int, max_tokens: int) -> str:
    ctx = Context()
    ctx.system(rules)
    ctx.user(task)
    text = (await ctx.generate(max_tokens=max_tokens, temperature=0.8, ignore_eos=True)).text
    if depth == 0:
        return text
    half = len(text) // 2
    answers = await asyncio.gather(
        solve(rules, text[:half], depth - 1, max_tokens), solve(rules, text[half:], 0, max_tokens)
    )
    ctx.user(f"The answers are: {answers[0]} and {answers[1]}. What follows?")
    return (await ctx.generate(max_tokens=max_tokens, temperature=0.8, ignore_eos=True)).text
