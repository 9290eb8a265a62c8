"""Skeleton of thought: lists the points of an answer, then writes all of them at once. (Ning et al., arXiv 2307.15337.)

The model is asked for one point a line; the elaborations are forks of the question, so it is run once.
"""

import asyncio

from loopwright import Context, emit


async def main(
    question: str = "How do I care for a bicycle?", points: int = 3, max_tokens: int = 48, seed: int = 1
) -> list[str]:
    ctx = Context(seed=seed)
    ctx.user(question)
    await ctx.flush()
    plan = await ctx.fork()
    plan.user(f"Name {points} points of the answer, each in one short line.")
    titles = []
    for number in range(1, points + 1):
        plan.append(f"{number}. ")
        titles.append((await plan.generate(max_tokens=16, until="\n")).text.strip())
    emit({"points": titles})
    return await asyncio.gather(*(elaborate(ctx, title, max_tokens) for title in titles))


async def elaborate(question: Context, title: str, max_tokens: int) -> str:
    ctx = await question.fork()
    ctx.user(f"Write about this point alone: {title}")
    turn = await ctx.generate(max_tokens=max_tokens)
    emit({"point": title, "text": turn.text.strip()})
    return turn.text.strip()
