"""Speculative decoding without a second model: guesses that what followed the last words before follows them again.

The guesses are checked in one forward, so the tokens are those of plain decoding, greedy or seeded. It stops guessing
when too few guesses are right: then one token a step is cheaper. (Saxena, "Prompt lookup decoding", 2023.)
"""

from loopwright import Context, detokenize, emit, model

MIN_ACCEPTED = 0.25  # tokens a guess must bring on average to be worth its rows
NUM_TRIED = 8  # guesses before it is judged


async def main(
    text: str = "Print 'hello' 20 times: hello hello hello", max_tokens: int = 48, ngram: int = 2, drafts: int = 4
) -> str:
    ctx = Context()
    ctx.append(text)
    await ctx.flush()
    ends, written = set((await model()).eos_ids), []
    num_steps = num_guesses = num_accepted = 0
    while len(written) < max_tokens and not ends & set(written):
        pays = num_guesses < NUM_TRIED or num_accepted >= MIN_ACCEPTED * num_guesses
        if not pays:
            turn = await ctx.generate(max_tokens=max_tokens - len(written))
            written += turn.tokens
            num_steps += len(turn.tokens)
            break
        guess = lookup(ctx.tokens, ngram, min(drafts, max_tokens - len(written) - 1))
        verified = await ctx.verify(guess)
        written += verified.tokens
        num_steps, num_guesses = num_steps + 1, num_guesses + bool(guess)
        num_accepted += verified.num_accepted
    emit({"steps": num_steps, "tokens": len(written), "accepted": num_accepted, "guesses": num_guesses})
    end = next((place for place, token in enumerate(written) if token in ends), len(written))
    return await detokenize(written[:end])


def lookup(tokens: tuple[int, ...], ngram: int, num_drafts: int) -> list[int]:
    """What followed the last `ngram` tokens where they stood last before."""
    last = tokens[-ngram:]
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == last:
            return list(tokens[start + ngram : start + ngram + num_drafts])
    return []
