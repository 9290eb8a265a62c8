"""An answer that a grammar holds to its form."""

from loopwright import Context, lark


async def main(number: str, grammar: str, max_tokens: int) -> str:
    ctx = Context()
    ctx.user(f"Describe house {number} in JSON.")
    return (await ctx.generate(grammar=lark(grammar), max_tokens=max_tokens)).text
