"""Chooses every token itself from the model's distributions: a sampler that never starts a banned word.

`next_dist` gives exact log-probabilities; what the program does with them is its own affair.
"""

import random
from collections.abc import Sequence

from loopwright import Context, detokenize, draw, emit_text, model, tokenize


async def main(
    question: str = "What is the capital of France?",
    banned: Sequence[str] = ("Paris", " Paris"),
    max_tokens: int = 32,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    rng = random.Random(seed)
    ends = set((await model()).eos_ids)
    never = {(await tokenize(word))[0] for word in banned}
    ctx = Context()
    ctx.user(question)
    chosen: list[int] = []
    text, num_shown = "", 0
    while len(chosen) < max_tokens:
        dist = await ctx.next_dist(k=64)
        chances = {token: p for token, p in dist.probabilities(max_tv=1.0).items() if token not in never}
        token = next(iter(chances))  # they come by falling probability
        if temperature > 0:
            token = draw({one: p ** (1 / temperature) for one, p in chances.items()}, rng)
        if token in ends:
            break
        ctx.accept(token)
        chosen.append(token)
        text = await detokenize(chosen)
        if not text.endswith("\ufffd"):  # a character of which a part is missing
            emit_text(text[num_shown:])
            num_shown = len(text)
    return text
