"""Plans an answer, then writes all of its points at once.

The question is too short to be worth a forward of its own, as a fork would make it.
"""

import asyncio

from loopwright import Context


async def main(number: str, points: int, plan_tokens: int, max_tokens: int) -> list[str]:
    question = f"How do I care for bicycle {number}?"
    text = await answer(question, f"Name {points} points of the answer.", plan_tokens)
    size = -(-len(text) // points)
    titles = [text[place * size : (place + 1) * size] for place in range(points)]
    return await asyncio.gather(
        *(answer(question, f"Write about this point alone: {title}", max_tokens) for title in titles)
    )


async def answer(question: str, request: str, max_tokens: int) -> str:
    ctx = Context()
    ctx.user(question)
    ctx.user(request)
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
