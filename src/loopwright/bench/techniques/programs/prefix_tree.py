"""Prompts that share their beginnings, as a tree of forks: each part runs once."""

import asyncio

from loopwright import Context


async def main(number: str, parts: list[list[str]], max_tokens: int) -> list[str]:
    root = Context()
    root.append(f"{number}. ")
    return await grow(root, parts, max_tokens)


async def grow(ctx: Context, parts: list[list[str]], max_tokens: int) -> list[str]:
    if not parts:
        return [(await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text]

    async def branch(fork: Context, part: str) -> list[str]:
        fork.append(part)
        return await grow(fork, parts[1:], max_tokens)

    *others, last = parts[0]
    forks = [await ctx.fork() for _ in others]
    branches = [branch(fork, part) for fork, part in zip(forks, others, strict=True)]
    return [text for texts in await asyncio.gather(*branches, branch(ctx, last)) for text in texts]
