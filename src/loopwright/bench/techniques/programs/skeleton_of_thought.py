"""Plans an answer, then writes all of its points at once."""

import asyncio

from loopwright import Context


async def main(number: str, points: int, plan_tokens: int, max_tokens: int) -> list[str]:
    ctx = Context()
    ctx.user(f"How do I care for bicycle {number}?")
    plan = await ctx.fork()
    plan.user(f"Name {points} points of the answer.")
    text = (await plan.generate(max_tokens=plan_tokens, ignore_eos=True)).text
    size = -(-len(text) // points)
    titles = [text[place * size : (place + 1) * size] for place in range(points)]
    return await asyncio.gather(*(elaborate(ctx, title, max_tokens) for title in titles))


async def elaborate(question: Context, title: str, max_tokens: int) -> str:
    ctx = await question.fork()
    ctx.user(f"Write about this point alone: {title}")
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
