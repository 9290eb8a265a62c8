"""Jacobi decoding: guesses a block of tokens, and lets the model correct all of them at once, again and again.

A token is kept when those before it no longer change, so the tokens are those of plain decoding, in fewer steps when
later guesses come true before their turn; where they do not, it guesses ever less often. (Santilli et al.,
arXiv 2305.10427.)
"""

from loopwright import Context, Verified, emit, speculate, tokenize


async def main(
    text: str = "One, two, three, four,",
    max_tokens: int = 32,
    block: int = 8,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    ctx = Context(seed=seed)
    ctx.append(text)
    guesses = (await tokenize(" "))[:1] * block  # anything

    def corrected(last: Verified | None, most: int) -> list[int]:
        if last is not None:
            guesses[:0] = last.proposals[len(last.tokens) - 1 :]
            del guesses[block:]
        return guesses[:most]

    found = await speculate(ctx, corrected, max_tokens=max_tokens, proposes=True, temperature=temperature)
    emit({"steps": found.num_steps, "saved": found.num_saved, "guesses": found.num_guesses, "gave_up": found.gave_up})
    return found.text
