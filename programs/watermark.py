"""Marks a text so that its origin can be shown: a token is likelier if it is in the half of the vocabulary that the
token before it makes green. Whoever knows the key counts the green ones. (Kirchenbauer et al., arXiv 2301.10226.)

The choice is a traced sampler whose state is the token before, so it costs the program no message a token.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from loopwright import Context, emit, tensor

KEY, SHARE, STRENGTH = 7919, 0.5, 4.0
PRIME = 65521.0
Number: TypeAlias = Any  # a float, or a tensor of them


def rest(value: Number) -> Number:
    """What is left after division by PRIME, of a number or of each of a vector.

    Adding 2**52 and taking it away rounds a float to an integer; all that is here stays below that."""
    rounded = (value / PRIME + 2.0**52) - 2.0**52
    left = value - rounded * PRIME
    return left + PRIME * (left < 0)


def is_green(token: Number, last: Number) -> Number:
    mixed = rest(token * 31.0 + last * 257.0 + KEY)
    mixed = rest(rest(mixed * mixed) * (mixed + KEY))
    return mixed < SHARE * PRIME


def marked(scores: tensor.Tensor, state: dict[str, tensor.Tensor]) -> tuple[tensor.Tensor, dict[str, tensor.Tensor]]:
    token = tensor.draw(tensor.softmax(scores + STRENGTH * is_green(tensor.ids(), state["last"])))
    return token, {"last": token}


def z_score(tokens: Sequence[int]) -> float:
    """How many standard deviations more tokens are green than in a text without the mark. What a text repeats counts
    once: the same pair is green or not each time, which says nothing new."""
    pairs = set(pairwise(tokens))
    num_green, num = sum(is_green(float(token), float(last)) for last, token in pairs), len(pairs)
    return (num_green - SHARE * num) / math.sqrt(num * SHARE * (1 - SHARE))


async def main(text: str = "The sea is", max_tokens: int = 200, seed: int = 1, mark: bool = True) -> str:
    ctx = Context(seed=seed)
    ctx.append(text)
    await ctx.flush()
    turn = await ctx.generate(
        sampler=marked if mark else None,
        state={"last": float(ctx.tokens[-1])} if mark else None,
        temperature=None if mark else 1.0,
        max_tokens=max_tokens,
        ignore_eos=True,
    )
    emit({"z": round(z_score([ctx.tokens[turn.num_prompt_tokens - 1], *turn.tokens]), 2)})
    return turn.text
