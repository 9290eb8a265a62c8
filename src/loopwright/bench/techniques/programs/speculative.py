"""Guesses that what followed the last words before follows them again, and has all guesses checked in one forward.

Without a guess, or after one of which less than half was right, it goes on in a plain segment, each time a longer one.
"""

from loopwright import Context, detokenize

SHORTEST = 4  # tokens of a plain segment


async def main(number: str, ngram: int, drafts: int, max_tokens: int) -> str:
    ctx = Context()
    ctx.append(f"House {number}. Print 'hello' 100 times: hello hello hello")
    await ctx.flush()
    written: list[int] = []
    plain_tokens = SHORTEST
    while (num_left := max_tokens - len(written)) > 0:
        if guess := lookup(ctx.tokens, ngram, min(drafts, num_left - 1)):
            verified = await ctx.verify(guess)
            written += verified.tokens
            if 2 * verified.num_accepted >= len(guess):
                plain_tokens = SHORTEST
                continue
        if num_left := max_tokens - len(written):
            turn = await ctx.generate(max_tokens=min(plain_tokens, num_left), ignore_eos=True)
            written += turn.tokens
            plain_tokens *= 2
    return await detokenize(written)


def lookup(tokens: tuple[int, ...], ngram: int, num_drafts: int) -> list[int]:
    """What followed the last `ngram` tokens where they stood last before."""
    last = tokens[-ngram:]
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == last:
            return list(tokens[start + ngram : start + ngram + num_drafts])
    return []
