"""Guesses that what followed the last words before follows them again, and has all guesses checked in one forward."""

from loopwright import Context, speculate


async def main(number: str, ngram: int, drafts: int, max_tokens: int) -> str:
    ctx = Context()
    ctx.append(f"House {number}. Print 'hello' 100 times: hello hello hello")

    def guess(_: object, most: int) -> list[int]:
        return lookup(ctx.tokens, ngram, min(drafts, most))

    return (await speculate(ctx, guess, max_tokens=max_tokens, ignore_eos=True)).text


def lookup(tokens: tuple[int, ...], ngram: int, num_drafts: int) -> list[int]:
    """What followed the last `ngram` tokens where they stood last before."""
    last = tokens[-ngram:]
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == last:
            followed = tokens[start + ngram :]  # as it goes on into itself, if that is not enough
            return [followed[place % len(followed)] for place in range(num_drafts)]
    return []
