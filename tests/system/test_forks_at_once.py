"""Several tasks of a program fork one context at once: they take turns, and every fork goes on from the whole of it."""

from system_rig import byte_oracle, byte_system, in_loop

PROGRAM = """
import asyncio
from loopwright import Context
async def main(text: str, num: int):
    trunk = Context()
    trunk.append(text)
    forks = await asyncio.gather(*(trunk.fork() for _ in range(num)))
    turns = await asyncio.gather(*(fork.generate(max_tokens=6, ignore_eos=True) for fork in forks))
    return [turn.tokens for turn in turns]
"""


def test_forks_of_one_context_that_begin_together_take_turns() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            text = "A context of more than one page, and a few tokens"
            outcome = await system.run(PROGRAM, text=text, num=5)
            expected = list(byte_oracle().generate([256, *text.encode()], max_tokens=6).tokens)
            assert outcome.result == [expected] * 5

    in_loop(scenario)
