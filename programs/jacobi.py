"""Jacobi decoding: guesses a block of tokens, and lets the model correct all of them at once, again and again.

A token is kept when those before it no longer change, so the tokens are those of greedy decoding, in fewer steps when
later guesses come true before their turn. (Santilli et al., arXiv 2305.10427.)
"""

from loopwright import Context, detokenize, emit, tokenize


async def main(text: str = "One, two, three, four,", max_tokens: int = 32, block: int = 8) -> str:
    ctx = Context()
    ctx.append(text)
    written: list[int] = []
    guesses = (await tokenize(" "))[:1] * block  # anything
    num_steps = 0
    while len(written) < max_tokens:
        drafts = guesses[: max_tokens - len(written) - 1]
        verified = await ctx.verify(drafts, proposes=True)
        num_steps += 1
        written += verified.tokens
        guesses = [*verified.proposals[len(verified.tokens) - 1 :], *guesses][:block]
    emit({"steps": num_steps, "tokens": len(written)})
    return await detokenize(written)
