"""Streams a story far beyond what it keeps: the first tokens and a window of the last ones, as in StreamingLLM.

What falls out of the window goes back to the pool while the segment runs, so the program never holds more pages than
the window needs, and each token costs the same however long the story gets.
"""

from loopwright import Approximate, Context, emit, resources


async def main(topic: str = "a lighthouse", window: int = 96, sinks: int = 16, max_tokens: int = 240) -> dict[str, int]:
    ctx = Context()
    ctx.user(f"Tell me a long story about {topic}.")
    await ctx.window(window, sinks)
    most_pages = 0
    async for _ in ctx.stream(max_tokens=max_tokens, emit=True):
        most_pages = max(most_pages, (await resources.debug_query())["num_pages"])
    found = ctx.provenance()
    if isinstance(found, Approximate):
        emit({"approximate_since": [cause.start for cause in found.causes], "window": found.causes[0].window})
    return {"num_tokens": len(ctx.tokens), "most_pages": most_pages}
