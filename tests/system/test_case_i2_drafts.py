"""Cases I2 and D4. A program that guesses by n-grams and has its guesses verified gets the tokens and log-probabilities
that it would get without: greedy and seeded, for prompts that repeat themselves. (tests/engine has the chi-square.)"""

from typing import Any

import pytest

from loopwright.core.calls import Sampling
from system_rig import System, WatchedExecutor, byte_oracle, byte_system, in_loop

NUM_TOKENS = 60
PROMPTS: dict[str, str | list[int]] = {"serving": "serving" * 48, "ones": [1, 1, 1]}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"top_logprobs": 1},
    "seeded": {"temperature": 1.0, "seed": 11, "top_logprobs": 1},
    "few tokens": {"temperature": 1.0, "seed": 12, "allowed": [1, 2, 115], "logprobs": "processed", "top_logprobs": 2},
    "penalties": {
        "temperature": 0.8, "seed": 13, "allowed": [1, 2, 3, 115, 101, 114], "repetition_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": 0.1, "logprobs": "processed", "top_p": 0.95, "typical_p": 0.99,
    },
}  # fmt: skip

SPECULATE = '''
from loopwright import Context

def guess(tokens, num_drafts):
    """What followed the last time that the last two tokens stood in a row."""
    for start in range(len(tokens) - 3, -1, -1):
        if tokens[start:start + 2] == tokens[-2:]:
            return list(tokens[start + 2:start + 2 + num_drafts])
    return []

async def main(prompt, num_tokens: int, options: dict):
    ctx = Context()
    ctx.append(prompt)
    await ctx.flush()
    tokens, logprobs, tops, accepted = [], [], [], []
    while len(tokens) < num_tokens:
        drafts = guess(ctx.tokens, min(6, num_tokens - len(tokens) - 1))
        verified = await ctx.verify(drafts, **options)
        tokens += verified.tokens
        logprobs += verified.logprobs
        tops += verified.top_logprobs
        accepted.append([verified.num_accepted, len(drafts)])
        assert list(ctx.tokens[-len(tokens):]) == tokens
    fork = await ctx.fork()
    after = await fork.generate(max_tokens=5, ignore_eos=True)
    return [tokens, logprobs, tops, accepted, verified.logprob_kind, after.tokens]
'''

GENERATE = """
from loopwright import Context
async def main(prompt, num_tokens: int, options: dict):
    ctx = Context()
    ctx.append(prompt)
    turn = await ctx.generate(max_tokens=num_tokens, ignore_eos=True, **options)
    after = await ctx.generate(max_tokens=5, ignore_eos=True)
    return [turn.tokens, turn.logprobs, turn.top_logprobs, turn.logprob_kind, after.tokens]
"""


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("setting", OPTIONS)
def test_drafts_never_show_in_the_answer(prompt: str, setting: str) -> None:
    arguments = {"prompt": PROMPTS[prompt], "num_tokens": NUM_TOKENS, "options": OPTIONS[setting]}

    async def scenario() -> None:
        async with byte_system() as system:
            tokens, logprobs, tops, kind, after = (await system.run(GENERATE, **arguments)).result
            num_plain = num_rows(system)
            drafted = (await system.run(SPECULATE, **arguments)).result
            assert drafted[0] == tokens == list(oracle_tokens(prompt, setting))
            assert drafted[1] == pytest.approx(logprobs, abs=1e-5)
            assert [[token for token, _ in top] for top in drafted[2]] == [[token for token, _ in top] for top in tops]
            assert drafted[4] == kind
            assert drafted[5] == after  # what was rolled back is not in the way
            num_accepted = sum(accepted for accepted, _ in drafted[3])
            assert num_accepted + len(drafted[3]) == NUM_TOKENS
            if setting in ("few tokens", "penalties"):
                assert num_accepted > 5  # the case is about drafts of both fates
                assert any(accepted < given for accepted, given in drafted[3])
                assert num_rows(system) - num_plain < NUM_TOKENS

    in_loop(scenario)


def test_a_loop_of_verify_without_drafts_equals_one_segment() -> None:
    body = SPECULATE.replace("guess(ctx.tokens, min(6, num_tokens - len(tokens) - 1))", "[]")

    async def scenario() -> None:
        async with byte_system() as system:
            arguments = {"prompt": "abc", "num_tokens": 20, "options": OPTIONS["penalties"]}
            expected = (await system.run(GENERATE, **arguments)).result
            found = (await system.run(body, **arguments)).result
            assert found[0] == expected[0]
            assert found[1] == pytest.approx(expected[1], abs=1e-5)

    in_loop(scenario)


def oracle_tokens(prompt: str, setting: str) -> tuple[int, ...]:
    given = PROMPTS[prompt]
    ids = [256, *given.encode()] if isinstance(given, str) else given
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in OPTIONS[setting].items()}
    return byte_oracle().generate(ids, Sampling(**options, seen=tuple(ids)), NUM_TOKENS).tokens


def num_rows(system: System) -> int:
    assert isinstance(system.executor, WatchedExecutor)
    return sum(batch.num_rows for batch in system.executor.batches)
