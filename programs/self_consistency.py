"""Lets the model reason several times and takes the answer that most of the reasons lead to.

(Wang et al., arXiv 2203.11171.) The answer is chosen among options after each reasoning, so it always parses.
"""

import asyncio
from collections import Counter

from loopwright import Context, emit


async def main(
    question: str = "Is 91 a prime number?",
    answers: list[str] = ["yes", "no"],
    paths: int = 5,
    max_tokens: int = 48,
    seed: int = 1,
) -> str:
    ctx = Context(seed=seed)
    ctx.user(f"{question} Think first.")
    forks = [await ctx.fork(opens_turn=True) for _ in range(paths)]
    votes = Counter(await asyncio.gather(*(think(fork, answers, max_tokens) for fork in forks)))
    emit({"votes": dict(sorted(votes.items()))})
    return max(answers, key=lambda answer: votes[answer])  # of equal ones the first


async def think(ctx: Context, answers: list[str], max_tokens: int) -> str:
    await ctx.generate(max_tokens=max_tokens, temperature=0.7)
    ctx.user("So the answer is")
    return await ctx.choose(answers)
