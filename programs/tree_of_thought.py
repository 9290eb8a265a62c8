"""Tree of thought: proposes plans, carries each out in several ways, and judges each result in several ways.

Every level forks: what stands before it is run once for all of its branches, and these share the model's batches.
(Yao et al., arXiv 2305.10601; the shape of the tree is that of the Pie paper.)
"""

import asyncio

from loopwright import Context, emit

LEVELS = ("Propose a plan in one line.", "Carry out the plan in one line.", "Is the result right? Rate it from 1 to 9.")


async def main(
    question: str = "What is 17 + 25 + 8?", branches: int = 2, max_tokens: int = 24, seed: int = 1
) -> list[list[str]]:
    root = Context(seed=seed)
    root.system("You solve a task step by step.")
    root.user(question)
    paths = await grow(root, 0, branches, max_tokens)
    for path in paths:
        emit({"path": path})
    return paths


async def grow(ctx: Context, level: int, branches: int, max_tokens: int) -> list[list[str]]:
    """The thoughts on the way to each leaf below the context, from left to right."""
    if level == len(LEVELS):
        return [[]]
    ctx.user(LEVELS[level])
    forks = [await ctx.fork(opens_turn=True) for _ in range(branches)]
    ctx.close()

    async def branch(fork: Context) -> list[list[str]]:
        turn = await fork.generate(max_tokens=max_tokens, temperature=0.8, stop="\n")
        return [[turn.text.strip(), *path] for path in await grow(fork, level + 1, branches, max_tokens)]

    return [path for paths in await asyncio.gather(*map(branch, forks)) for path in paths]
