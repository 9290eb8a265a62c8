"""Streams a story of which every token sees only the last ones: a sliding window, as in Longformer and Mistral.

What falls out of the window leaves the page list while the segment runs, so its pages and the cost of a token stay the
same however long the story gets. (Beltagy et al., arXiv 2004.05150.)
"""

from loopwright import Context, emit


async def main(topic: str = "a lighthouse", window: int = 64, max_tokens: int = 160) -> str:
    ctx = Context()
    ctx.append(f"Here is a long story about {topic}.")
    await ctx.window(window)
    turn = await ctx.generate(max_tokens=max_tokens, emit=True)
    emit({"tokens": len(ctx.tokens), "pages": ctx.num_pages})
    return turn.text
