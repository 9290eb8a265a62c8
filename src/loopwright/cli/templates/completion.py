"""Continues a text."""

from loopwright import Context


async def main(prompt: str = "The sea is", max_tokens: int = 40, temperature: float = 0.0) -> str:
    ctx = Context()
    ctx.append(prompt)
    turn = await ctx.generate(emit=True, max_tokens=max_tokens, temperature=temperature)
    return turn.text
