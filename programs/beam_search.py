"""Beam search: keeps the most probable continuations, forks those that go on, and shares the pages of what they share.

A hypothesis is worth the sum of its log-probabilities by the `length_penalty`-th power of how many tokens it generated;
the prompt does not count. With `pattern`, a regular expression, every beam is held to it by itself, and what it leaves
out loses no probability to what it lets through. (As `num_beams` and `prefix_allowed_tokens_fn` of transformers.)
"""

import asyncio
import math
from dataclasses import dataclass

from loopwright import Context, Grammar, detokenize, emit, model, regex


@dataclass
class Beam:
    ctx: Context
    logprob: float = 0.0
    tokens: tuple[int, ...] = ()


async def main(
    text: str = "The best thing about the sea is",
    beams: int = 4,
    max_tokens: int = 24,
    length_penalty: float = 1.0,
    pattern: str = "",
) -> str:
    root = Context()
    _, start = await root.place(text)
    grammar = regex(pattern) if pattern else None
    ends = set((await model()).eos_ids)
    live, ended = [Beam(root)], []
    for length in range(1, max_tokens + 1):
        options = await candidates(live, 2 * beams, grammar, start)
        ended += [
            (worth(logprob, length, length_penalty), (*beam.tokens, token))
            for logprob, token, beam in options[:beams]
            if token in ends
        ]
        ended = sorted(ended, key=lambda one: -one[0])[:beams]
        live = await grown([one for one in options if one[1] not in ends][:beams])
        if not live or (len(ended) == beams and worth(live[0].logprob, length, length_penalty) <= ended[-1][0]):
            break
    else:
        ended += [(worth(beam.logprob, max_tokens, length_penalty), beam.tokens) for beam in live]
    value, tokens = max(ended, key=lambda one: one[0])
    emit({"worth": round(value, 4), "tokens": len(tokens), "pages": sum(beam.ctx.num_pages for beam in live)})
    return await detokenize([token for token in tokens if token not in ends])


def worth(logprob: float, num_tokens: int, length_penalty: float) -> float:
    return logprob / num_tokens**length_penalty


async def candidates(live: list[Beam], num: int, grammar: Grammar | None, start: int) -> list[tuple[float, int, Beam]]:
    """The most probable next tokens of all beams together. Their rows are one batch."""
    found = await asyncio.gather(*(beam.ctx.next_dist(num, grammar=grammar, since=start) for beam in live))
    options: list[tuple[float, int, Beam]] = []
    for beam, dist in zip(live, found, strict=True):
        base = beam.logprob + math.log(dist.allowed_mass or 1.0)
        options += [(base + one, token, beam) for token, one in dist]
    return sorted(options, key=lambda option: -option[0])[:num]


async def grown(options: list[tuple[float, int, Beam]]) -> list[Beam]:
    """The beams with their next tokens: forks, but the last child of a beam takes its context."""
    lasts = {id(beam): number for number, (_, _, beam) in enumerate(options)}
    forks = [
        beam.ctx if lasts[id(beam)] == number else await beam.ctx.fork() for number, (_, _, beam) in enumerate(options)
    ]
    for ctx, (_, token, _) in zip(forks, options, strict=True):
        ctx.accept(token)
    return [
        Beam(ctx, logprob, (*beam.tokens, token)) for ctx, (logprob, token, beam) in zip(forks, options, strict=True)
    ]
