"""How sure is the model of each of some answers? Exact probabilities of whole answers, scaled to sum to 1.

The question is run once; the answers are scored beside each other, and nothing is sampled.
"""

import math

from loopwright import Context, emit


async def main(
    question: str = "Is the sea salty? Answer with one word.", answers: list[str] = ["Yes", "No", "Perhaps"]
) -> dict[str, float]:
    ctx = Context()
    ctx.user(question)
    logprobs = [score.logprob for score in await ctx.score(answers)]
    total = max(logprobs) + math.log(sum(math.exp(one - max(logprobs)) for one in logprobs))
    shares = {answer: math.exp(one - total) for answer, one in zip(answers, logprobs, strict=True)}
    emit({"shares": {answer: round(share, 4) for answer, share in shares.items()}})
    return shares
