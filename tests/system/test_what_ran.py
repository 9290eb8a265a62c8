"""A run's final event says what ran for it: as many tokens as the engine saw and sampled, of the runs below it too."""

import pytest

from loopwright.core.events import RanTokens
from system_rig import WatchedExecutor, byte_system, in_loop

PROGRAM = """
# /// program
# permissions = { children = ["@self"] }
# ///
from loopwright import *
async def below(text: str):
    ctx = Context()
    ctx.append(text)
    return (await ctx.generate(max_tokens=3, ignore_eos=True)).text
async def main(num_children: int, fails: bool):
    ctx = Context()
    ctx.append("a prompt of its own")
    await ctx.generate(max_tokens=4, ignore_eos=True)
    for number in range(num_children):
        await (await spawn(below, text=f"{number} a child's prompt")).wait()
    if fails:
        raise ValueError("as asked")
"""


@pytest.mark.parametrize(("num_children", "fails"), [(0, False), (2, False), (1, True)])
def test_what_ran_is_told_with_the_end(num_children: int, fails: bool) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            final = (await system.run(PROGRAM, num_children=num_children, fails=fails)).final
            assert final.code == ("program_error" if fails else "ok")
            own, child = len("a prompt of its own") + 1, len("0 a child's prompt") + 1  # and where a context begins
            assert final.ran == RanTokens(own + num_children * child, 0, 4 + num_children * 3)
            assert isinstance(system.executor, WatchedExecutor)
            num_run = sum(batch.num_tokens for batch in system.executor.batches)
            num_fed_back = 3 + num_children * 2  # of those that were sampled; the last of each is not
            assert num_run == final.ran.prompt_tokens + num_fed_back

    in_loop(scenario)
