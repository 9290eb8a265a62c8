"""Continues a text, as plain completion: no chat template, greedy unless told otherwise."""

from loopwright import Context


async def main(prompt: str, max_tokens: int = 64, temperature: float = 0.0, seed: int = 0) -> str:
    ctx = Context(seed=seed)
    ctx.append(prompt)
    turn = await ctx.generate(emit=True, max_tokens=max_tokens, temperature=temperature)
    return turn.text
