"""Classifier-free guidance: the tokens that a prompt makes likelier than its absence does, made likelier still.

The scores are (1 - w) · without + w · with the prompt. Both contexts run in one batch. (Sanchez et al.,
arXiv 2306.17806.)
"""

import asyncio

from loopwright import Context, Distribution, detokenize, emit, model


async def main(
    instruction: str = "Answer as a pirate.",
    text: str = "The weather today is",
    weight: float = 1.5,
    max_tokens: int = 24,
) -> str:
    guided, plain = Context(), Context()
    guided.append(f"{instruction} {text}")
    plain.append(text)
    ends, written = set((await model()).eos_ids), []
    num_changed = 0
    while len(written) < max_tokens:
        with_it, without = await asyncio.gather(guided.next_dist(1, logits=True), plain.next_dist(1, logits=True))
        scores = [(1 - weight) * b + weight * a for a, b in zip(logprobs(with_it), logprobs(without), strict=True)]
        token = max(range(len(scores)), key=scores.__getitem__)
        num_changed += token != with_it.ids[0]
        if token in ends:
            break
        written.append(token)
        guided.accept(token)
        plain.accept(token)
    emit({"changed": num_changed, "tokens": len(written)})
    return await detokenize(written)


def logprobs(dist: Distribution) -> list[float]:
    """Of the whole vocabulary: the logits, moved so that the most probable one has its log-probability."""
    logits = dist.logits or ()
    shift = dist.logprobs[0] - logits[dist.ids[0]]
    return [logit + shift for logit in logits]
