"""What a program waits for, and what it does not: an answer that is there suspends nobody."""

import pytest

from loopwright.core.results import Segment
from loopwright.runtime.host import Host
from loopwright.runtime.sandboxes import wasm
from system_rig import byte_system, in_loop

ROUNDS = """
from loopwright import Queue
async def main(num_rounds: int):
    queue = Queue()
    for _ in range(num_rounds):
        await queue.synchronize()
"""

GENERATING = """
from loopwright import Context
async def main():
    ctx = Context()
    ctx.append("x")
    return len((await ctx.generate(max_tokens=3)).tokens)
"""


@pytest.mark.wasm
def test_what_control_answers_at_once_suspends_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    num_waits: list[int] = []
    wait = wasm.next_events

    async def counted(*arguments: object) -> str:
        num_waits.append(1)
        return await wait(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(wasm, "next_events", counted)

    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(ROUNDS, "wasm", num_rounds=200)).result is None
            assert len(num_waits) == 0
            assert (await system.run(GENERATING, "wasm")).result == 3
            assert len(num_waits) > 0

    in_loop(scenario)


def test_a_fault_of_ours_in_what_control_completed_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = Host._complete

    def broken(self: Host, completion: object) -> None:
        if isinstance(getattr(completion, "result", None), Segment):
            raise ZeroDivisionError("ours")
        complete(self, completion)  # type: ignore[arg-type]

    monkeypatch.setattr(Host, "_complete", broken)

    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await system.run(GENERATING)
            assert outcome.final.code == "internal"
            assert "ZeroDivisionError: ours" in outcome.final.error.message

    in_loop(scenario)
