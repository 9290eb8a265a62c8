"""Case E4. A prompt of one token more than the context is refused with both numbers; one that just fits runs whole."""

import pytest

from system_rig import System, WatchedExecutor, byte_oracle, byte_system, in_loop

MAX_CONTEXT = 4096

PROGRAM = """
from loopwright import Context, ContextTooLong
async def main(num_tokens: int):
    ctx = Context()
    ctx.append([1] * num_tokens)
    try:
        turn = await ctx.generate(max_tokens=4, ignore_eos=True)
    except ContextTooLong as error:
        small = Context()
        small.append([1, 2, 3])
        return [str(error), (await small.generate(max_tokens=2, ignore_eos=True)).tokens]
    return [turn.num_prompt_tokens, turn.tokens, turn.reason]
"""


def test_one_token_too_many_is_refused_with_both_numbers_and_runs_nothing() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=300) as system:
            message, after = (await system.run(PROGRAM, num_tokens=MAX_CONTEXT + 1)).result
            assert (
                "position 4096 needs a context of 4097 tokens; this model's maximum context length is 4096" in message
            )
            assert after == list(byte_oracle().generate([1, 2, 3], max_tokens=2).tokens)
            assert num_run(system) == 4  # of the small context, prompt and first token

    in_loop(scenario)


@pytest.mark.parametrize(("num_tokens", "num_answered"), [(MAX_CONTEXT, 1), (MAX_CONTEXT - 1, 1), (MAX_CONTEXT - 2, 2)])
def test_a_prompt_that_fits_is_run_whole(num_tokens: int, num_answered: int) -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=300) as system:
            num_prompt, tokens, reason = (await system.run(PROGRAM, num_tokens=num_tokens)).result
            assert (num_prompt, len(tokens), reason) == (num_tokens, num_answered, "length")
            assert num_run(system) == num_tokens + num_answered - 1

    in_loop(scenario)


def num_run(system: System) -> int:
    assert isinstance(system.executor, WatchedExecutor)
    return sum(batch.num_tokens for batch in system.executor.batches)
