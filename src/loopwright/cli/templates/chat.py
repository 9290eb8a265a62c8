"""Answers a message, in the tone that the system message sets."""

from loopwright import Context


async def main(message: str = "What is a tide?", system: str = "You are brief.", max_tokens: int = 80) -> str:
    ctx = Context()
    ctx.system(system)
    ctx.user(message)
    turn = await ctx.generate(emit=True, max_tokens=max_tokens)
    return turn.text
