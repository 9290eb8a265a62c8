"""Proposes, carries out and judges in several ways each: a tree of forks, level by level."""

# /// program
# limits = { seconds = 3600 }
# ///

import asyncio

from loopwright import Context


async def main(number: str, system: str, levels: list[str], branches: int, max_tokens: int) -> list[list[str]]:
    root = Context()
    root.system(system)
    root.user(f"What is {number} + 1234567?")
    return await grow(root, levels, branches, max_tokens)


async def grow(ctx: Context, levels: list[str], branches: int, max_tokens: int) -> list[list[str]]:
    if not levels:
        return [[]]
    ctx.user(levels[0])

    async def branch(fork: Context) -> list[list[str]]:
        turn = await fork.generate(max_tokens=max_tokens, temperature=0.8, ignore_eos=True)
        return [[turn.text, *path] for path in await grow(fork, levels[1:], branches, max_tokens)]

    forks = [*[await ctx.fork(opens_turn=True) for _ in range(branches - 1)], ctx]
    return [path for paths in await asyncio.gather(*map(branch, forks)) for path in paths]
