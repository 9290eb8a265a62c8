"""Guesses that what followed the last words before follows them again, and has all guesses checked in one forward."""

from loopwright import Context, detokenize

MIN_ACCEPTED, NUM_TRIED = 0.25, 8


async def main(number: str, ngram: int, drafts: int, max_tokens: int) -> str:
    ctx = Context()
    ctx.user(f"Print 'hello' 100 times. ({number})")
    written: list[int] = []
    num_guesses = num_accepted = 0
    while (num_left := max_tokens - len(written)) > 0:
        if num_guesses >= NUM_TRIED and num_accepted < MIN_ACCEPTED * num_guesses:
            turn = await ctx.generate(max_tokens=num_left, ignore_eos=True)
            written += turn.tokens
            break
        guess = lookup(ctx.tokens, ngram, min(drafts, num_left - 1))
        verified = await ctx.verify(guess)
        written += verified.tokens
        num_guesses += bool(guess)
        num_accepted += verified.num_accepted
    return await detokenize(written)


def lookup(tokens: tuple[int, ...], ngram: int, num_drafts: int) -> list[int]:
    """What followed the last `ngram` tokens where they stood last before."""
    last = tokens[-ngram:]
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == last:
            return list(tokens[start + ngram : start + ngram + num_drafts])
    return []
