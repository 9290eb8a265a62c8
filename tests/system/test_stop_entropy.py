"""`stop_entropy`: a segment ends before the first token in whose place the model is less sure."""

import pytest

from loopwright.core.calls import Sampling
from system_rig import byte_oracle, byte_system, in_loop

PROMPT = "The quick brown fox jumps over"
IDS = [256, *PROMPT.encode()]

BODY = """
from loopwright import *
async def main(limit, way):
    ctx = Context(seed=5)
    ctx.append("The quick brown fox jumps over")
    options = {"max_tokens": 30, "ignore_eos": True, "temperature": 0.8, "stop_entropy": limit}
    seen = []
    if way == "generate":
        turn = await ctx.generate(emit=True, **options)
    elif way == "stream":
        stream = ctx.stream(**options)
        async for chunk in stream:
            seen += chunk.tokens
        turn = stream.turn
    else:
        async with ctx.watch(window=6, **options) as watched:
            async for token in watched:
                seen.append(token.id)
        turn = watched.turn
    after = await ctx.generate(max_tokens=3, ignore_eos=True)
    return [turn.reason, turn.tokens, turn.num_kept, seen, ctx.tokens[:-3], after.tokens]
"""


def entropies(tokens: list[int]) -> list[float]:
    """Of the model's distribution in the place of each token, in nats."""
    logprobs = byte_oracle().logits([*IDS, *tokens]).double().log_softmax(-1)
    return [float(-(row.exp() * row).sum()) for row in logprobs[len(IDS) - 1 : -1]]


@pytest.mark.parametrize("way", ["generate", "stream", "watch"])
@pytest.mark.parametrize("share", [0.0, 0.7, 0.9, 1.0])
def test_a_segment_ends_before_the_first_place_that_is_too_uncertain(way: str, share: float) -> None:
    tokens = list(byte_oracle().generate(IDS, Sampling(seed=5, temperature=0.8), 30).tokens)
    found = entropies(tokens)
    limit = sorted([0.0, *found])[int(share * len(found))] + 1e-4
    end = next((place for place, one in enumerate(found) if one > limit), 30)

    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await system.run(BODY, limit=limit, way=way)
            reason, got, num_kept, seen, context, after = outcome.result
            assert got == tokens[:end]
            assert num_kept == end
            assert reason == ("entropy" if end < 30 else "length")
            assert way == "generate" or seen == got
            assert context == [*IDS, *tokens[:end]]
            assert after == list(byte_oracle().generate(context, Sampling(), 3).tokens)

    in_loop(scenario)
