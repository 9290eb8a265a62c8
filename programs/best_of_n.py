"""Writes several answers side by side and keeps the one that the model itself finds most likely, token for token."""

import asyncio

from loopwright import Context, emit


async def main(question: str = "Name a bird.", n: int = 4, max_tokens: int = 32, seed: int = 1) -> str:
    ctx = Context(seed=seed)
    ctx.user(question)
    forks = [await ctx.fork(opens_turn=True) for _ in range(n)]
    turns = await asyncio.gather(*(fork.generate(max_tokens=max_tokens, temperature=1.0) for fork in forks))
    means = [sum(turn.logprobs) / len(turn.logprobs) for turn in turns]
    emit({"answers": [[turn.text, round(mean, 3)] for turn, mean in zip(turns, means, strict=True)]})
    return turns[means.index(max(means))].text
