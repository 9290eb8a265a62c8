"""A stream that sees its first tokens and a window of the last ones."""

from loopwright import Context


async def main(number: str, window: int, sinks: int, stride: int, max_tokens: int) -> str:
    ctx = Context()
    ctx.user(f"House {number}: tell me a long story about it.")
    await ctx.window(window, sinks)
    texts = []
    for _ in range(0, max_tokens, stride):
        texts.append((await ctx.generate(max_tokens=stride, ignore_eos=True)).text)
    return "".join(texts)
