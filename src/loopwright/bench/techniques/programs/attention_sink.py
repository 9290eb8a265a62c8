"""A stream that sees its first tokens and a window of the last ones."""

from loopwright import Context


async def main(number: str, window: int, sinks: int, max_tokens: int) -> str:
    ctx = Context()
    ctx.user(f"House {number}: tell me a long story about it.")
    await ctx.flush()  # without the window, as whose tokens the cache may know some
    await ctx.window(window, sinks)
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
