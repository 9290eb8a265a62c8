"""Speculative decoding without a second model: guesses that what followed the last words before follows them again.

The guesses are checked in one forward, so the tokens are those of plain decoding, greedy or seeded; where too few are
right for what that costs at the time, it guesses ever less often. (Saxena, "Prompt lookup decoding", 2023.)
"""

from loopwright import Context, emit, speculate


async def main(
    text: str = "The days: Monday, Tuesday, Wednesday. The days: Monday, Tuesday, Wednesday. The days:",
    max_tokens: int = 48,
    ngram: int = 2,
    drafts: int = 4,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    ctx = Context(seed=seed)
    ctx.append(text)
    found = await speculate(
        ctx,
        lambda _, most: lookup(ctx.tokens, ngram, min(drafts, most)),
        max_tokens=max_tokens,
        temperature=temperature,
    )
    emit({"steps": found.num_steps, "saved": found.num_saved, "guesses": found.num_guesses, "gave_up": found.gave_up})
    return found.text


def lookup(tokens: tuple[int, ...], ngram: int, num_drafts: int) -> list[int]:
    """What followed the last `ngram` tokens where they stood last before."""
    last = tokens[-ngram:]
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == last:
            followed = tokens[start + ngram :]  # as it goes on into itself, if that is not enough
            return [followed[place % len(followed)] for place in range(num_drafts)]
    return []
