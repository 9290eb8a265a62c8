"""Beam search over distributions: forks share the pages of what they share. Ends of the text are passed over."""

# /// program
# limits = { seconds = 3600 }
# ///

import asyncio
from typing import TypeAlias

from loopwright import Context, detokenize, model

Beam: TypeAlias = tuple[float, Context, tuple[int, ...]]  # its log-probability, its context, its tokens


async def main(number: str, beams: int, max_tokens: int) -> str:
    root = Context()
    root.append(f"The best thing about the number {number} is")
    ends = set((await model()).eos_ids)
    live: list[Beam] = [(0.0, root, ())]
    for _ in range(max_tokens):
        found = await asyncio.gather(*(ctx.next_dist(2 * beams) for _, ctx, _ in live))
        options = [
            (value + logprob, place, token)
            for place, ((value, _, _), dist) in enumerate(zip(live, found, strict=True))
            for token, logprob in dist
            if token not in ends
        ]
        live = await grown(live, sorted(options, key=lambda one: -one[0])[:beams])
    return await detokenize(live[0][2])


async def grown(live: list[Beam], options: list[tuple[float, int, int]]) -> list[Beam]:
    """The last child of a beam takes its context, the others are forks of it."""
    lasts = {place: number for number, (_, place, _) in enumerate(options)}
    grown = []
    for number, (value, place, token) in enumerate(options):
        _, ctx, tokens = live[place]
        grown.append((value, ctx if lasts[place] == number else await ctx.fork(), (*tokens, token)))
    for _, ctx, tokens in grown:
        ctx.accept(tokens[-1])
    return grown
