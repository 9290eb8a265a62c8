"""One answer of so many tokens."""

from loopwright import Context


async def main(number: str, max_tokens: int) -> str:
    ctx = Context()
    ctx.user(f"Tell me about the number {number}.")
    return (await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text
