"""Proposals of different lengths, of which any two are merged as soon as both are there, and so on."""

# /// program
# limits = { seconds = 3600 }
# ///

import asyncio

from loopwright import Context


async def main(number: str, lengths: list[int], levels: int, max_tokens: int) -> list[str]:
    root = Context()
    root.user(f"Propose something for house {number}.")
    forks = [await root.fork() for _ in lengths]
    running = {asyncio.create_task(write(fork, length)): 0 for fork, length in zip(forks, lengths, strict=True)}
    waiting: dict[int, str] = {}
    results = []
    while running:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in [one for one in running if one in done]:
            level, text = running.pop(task), task.result()
            if level == levels:
                results.append(text)
            elif level in waiting:
                merging = merge(root, waiting.pop(level), text, max_tokens)
                running[asyncio.create_task(merging)] = level + 1
            else:
                waiting[level] = text
    return results


async def write(ctx: Context, max_tokens: int) -> str:
    return (await ctx.generate(max_tokens=max_tokens, temperature=0.8, ignore_eos=True)).text


async def merge(root: Context, one: str, other: str, max_tokens: int) -> str:
    ctx = await root.fork()
    ctx.assistant(one)
    ctx.user(f"Make one proposal of it and of this: {other}")
    return await write(ctx, max_tokens)
