"""Case A1. Two requests run at once, and one of them forbids the token that the other starts with, as a bias, as a list
of what is allowed, or in a loop of its own. Only that one never writes it; the other writes what it writes alone: the
same tokens, with the same log-probabilities to 1e-5 (the reference class)."""

from typing import Any

import pytest
from http_rig import served

from loopwright.core.calls import Sampling
from system_rig import byte_oracle, byte_system, in_loop, together

PROMPT = "The quick brown fox jumps over"
NUM_TOKENS = 40

PLAIN = """
from loopwright import Context
async def main(prompt: str, num_tokens: int, banned: int = -1):
    ctx = Context()
    ctx.append(prompt)
    turn = await ctx.generate(max_tokens=num_tokens, ignore_eos=True)
    return [turn.tokens, turn.logprobs]
"""

WITH_BIAS = PLAIN.replace("ignore_eos", "logit_bias={banned: -100}, ignore_eos")
WITH_ALLOWED = PLAIN.replace("ignore_eos", "allowed=[one for one in range(260) if one != banned], ignore_eos")

WITH_OWN_LOOP = """
from loopwright import Context
async def main(prompt: str, num_tokens: int, banned: int):
    ctx = Context()
    ctx.append(prompt)
    chosen = []
    for _ in range(num_tokens):
        dist = await ctx.next_dist(k=2)
        token = next(one for one in dist.ids if one != banned)
        ctx.accept(token)
        chosen.append(token)
    return [chosen, []]
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
@pytest.mark.parametrize("banning", [WITH_BIAS, WITH_ALLOWED, WITH_OWN_LOOP], ids=["bias", "allowed", "own_loop"])
def test_a_ban_holds_for_the_program_that_set_it_and_for_no_other(banning: str, sandbox: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            given: dict[str, Any] = {"prompt": PROMPT, "num_tokens": NUM_TOKENS}
            alone = (await system.run(PLAIN, sandbox, **given)).result
            banned = alone[0][0]
            first, second = await together(
                system, system.run(banning, sandbox, banned=banned, **given), system.run(PLAIN, sandbox, **given)
            )
            assert banned not in first.result[0]
            prompt = [256, *PROMPT.encode()]
            without = Sampling(allowed=tuple(one for one in range(260) if one != banned))
            assert first.result[0] == list(byte_oracle().generate(prompt, without, NUM_TOKENS).tokens)
            assert second.result == [alone[0], pytest.approx(alone[1], abs=1e-5)]

    in_loop(scenario)


def test_a_ban_of_one_chat_request_leaves_the_other_as_it_was() -> None:
    async def scenario() -> None:
        async with byte_system() as system, served(system) as client:
            ascii_only = {str(token): -100 for token in range(128, 260)}  # so that the text names every token
            alone = await client.chat(PROMPT, max_tokens=NUM_TOKENS, logit_bias=ascii_only)
            banned = alone[0]
            first, second = await together(
                system,
                client.chat(PROMPT, max_tokens=NUM_TOKENS, logit_bias={**ascii_only, str(ord(banned)): -100}),
                client.chat(PROMPT, max_tokens=NUM_TOKENS, logit_bias=ascii_only),
            )
            assert len(first) == len(second) == NUM_TOKENS
            assert banned not in first
            assert second == alone

    in_loop(scenario)
