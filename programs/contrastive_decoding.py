"""Contrastive decoding: of the tokens that are plausible, the one that an expert prefers most over an amateur.

The amateur here is the same model that sees only the last few tokens. A token is plausible if its probability is at
least `plausible` times that of the best one. (Li et al., arXiv 2210.15097.)
"""

import math

from loopwright import Context, detokenize, emit, model


async def main(
    text: str = "The old man walked to the harbour because",
    memory: int = 4,
    plausible: float = 0.1,
    max_tokens: int = 24,
) -> str:
    expert = Context()
    expert.append(text)
    await expert.flush()
    ends, written = set((await model()).eos_ids), []
    while len(written) < max_tokens:
        amateur = Context()
        amateur.accept(expert.tokens[-memory:])
        dist = await expert.next_dist()
        likely = {token: logprob for token, logprob in dist if logprob >= dist.logprobs[0] + math.log(plausible)}
        doubts = await amateur.next_dist(1, must_include=list(likely))
        amateur.close()
        token = max(likely, key=lambda one: likely[one] - doubts.listed(one))
        if token in ends:
            break
        written.append(token)
        expert.accept(token)
        await expert.flush()
    emit({"tokens": len(written)})
    return await detokenize(written)
