"""Prompts that share their beginnings, as a tree: 1 × 2 × 2 × 2 = 8 leaves. Each part of a prompt is run once.

Without forks, the eight prompts would be sent whole, and the server's prefix cache would have to find what they share.
"""

import asyncio

from loopwright import Context, emit

PARTS = (
    ("You write one sentence about an animal.",),
    (" It is a cat.", " It is a dog."),
    (" It is young.", " It is old."),
    (" It is happy:", " It is sad:"),
)


async def main(max_tokens: int = 32) -> dict[str, str]:
    root = Context()
    root.append(PARTS[0][0])
    written = dict(await grow(root, PARTS[0][0], 1, max_tokens))
    emit({"leaves": len(written)})
    return written


async def grow(ctx: Context, prompt: str, level: int, max_tokens: int) -> list[tuple[str, str]]:
    """The prompt of each leaf below the context, with what the model wrote there."""
    if level == len(PARTS):
        return [(prompt, (await ctx.generate(max_tokens=max_tokens)).text)]

    async def branch(fork: Context, part: str) -> list[tuple[str, str]]:
        fork.append(part)
        return await grow(fork, prompt + part, level + 1, max_tokens)

    forks = [(await ctx.fork(), part) for part in PARTS[level]]
    ctx.close()
    return [leaf for leaves in await asyncio.gather(*(branch(*one) for one in forks)) for leaf in leaves]
