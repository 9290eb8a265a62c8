"""Graph of thought: several proposals, of which any two are merged as soon as both are there, and so on: 8, 4, 2.

Nothing waits for the slowest: a pair goes on while others are still being written. (Besta et al., arXiv 2308.09687.)
"""

import asyncio

from loopwright import Context, emit

LENGTHS = (4, 32, 16, 8, 4, 16, 3, 32)  # tokens of each proposal, so that they finish at different times


async def main(topic: str = "a garden for bees", levels: int = 2, max_tokens: int = 64, seed: int = 1) -> list[str]:
    root = Context(seed=seed)
    root.user(f"Propose something for {topic}.")
    forks = await asyncio.gather(*(root.fork() for _ in LENGTHS))
    running = {asyncio.create_task(write(fork, length)): 0 for fork, length in zip(forks, LENGTHS, strict=True)}
    waiting: dict[int, str] = {}  # the one of a level that has no partner yet
    results = []
    while running:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in [one for one in running if one in done]:
            level, text = running.pop(task), task.result()
            if level == levels:
                results.append(text)
            elif level in waiting:
                emit({"level": level, "pair": [waiting[level], text]})
                running[asyncio.create_task(merge(root, waiting.pop(level), text, max_tokens))] = level + 1
            else:
                waiting[level] = text
    return results


async def write(ctx: Context, max_tokens: int) -> str:
    async with ctx:
        return (await ctx.generate(max_tokens=max_tokens, temperature=0.8, ignore_eos=True)).text.strip()


async def merge(root: Context, one: str, other: str, max_tokens: int) -> str:
    ctx = await root.fork()
    ctx.assistant(one)
    ctx.user(f"Make one proposal of it and of this: {other}")
    return await write(ctx, max_tokens)
