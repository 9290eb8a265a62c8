"""Case G4. Runs hold every page of a 32-page pool, some doing nothing, some waiting for each other's pages; one more is
served, and every output equals its solo run."""

import asyncio
from typing import Any

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import Sampling
from loopwright.core.events import Emit
from system_rig import System, byte_oracle, byte_system, in_loop, until

WAITING = """
import asyncio
from loopwright import Context, emit
async def main(prompt: str, num_tokens: int, is_patient: bool):
    ctx = Context()
    ctx.append(prompt)
    first = await ctx.generate(max_tokens=num_tokens, ignore_eos=True)
    emit("!")
    if is_patient:
        await asyncio.sleep(SECONDS)
    second = await ctx.generate(max_tokens=num_tokens, ignore_eos=True)
    return [first.tokens + second.tokens, first.logprobs + second.logprobs]
"""
WATCHING = """
import asyncio
from loopwright import Context, emit
async def main(prompt: str, num_tokens: int, is_patient: bool):
    ctx = Context()
    ctx.append(prompt)
    is_vetoed = False
    async with ctx.watch(window=num_tokens, max_tokens=2 * num_tokens, ignore_eos=True) as watched:
        async for token in watched:
            if token.index == num_tokens // 2 and not is_vetoed:
                emit("!")
                await asyncio.sleep(SECONDS)
                is_vetoed = True
                watched.veto(ban=False)
    return [watched.turn.tokens, watched.turn.logprobs]
"""
LENGTH, NUM_TOKENS = 40, 12  # four pages hold a prompt, its BOS and the first answer


def prompt(number: int) -> str:
    return f"{number}: {'abcdefghi'[number] * 7} and so on, and on, and on, and on"[:LENGTH]


def check(number: int, result: list[Any]) -> None:
    tokens = [256, *prompt(number).encode()]
    alone = byte_oracle().generate(tokens, Sampling(), 2 * NUM_TOKENS)
    assert result[0] == list(alone.tokens)
    assert result[1] == pytest.approx(alone.logprobs, abs=1e-5)


async def start(system: System, number: int, seconds: float, is_patient: bool = True, program: str = WAITING) -> Any:
    source = program.replace("SECONDS", str(seconds))
    return await system.start(source, prompt=prompt(number), num_tokens=NUM_TOKENS, is_patient=is_patient)


def test_a_ninth_run_is_served_while_eight_that_hold_every_page_do_nothing() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=32) as system:
            eight = [await start(system, number, 2.0) for number in range(8)]

            async def all_sleep() -> bool:
                stats = await system.controller.stats()
                return stats.num_free_blocks == 0 and stats.num_waiting_calls == 0

            await until(all_sleep)
            ninth = await (await start(system, 8, 0, is_patient=False)).outcome()
            check(8, ninth.result)
            for number, run in enumerate(eight):
                check(number, (await run.outcome()).result)

    in_loop(scenario)


def test_a_ninth_run_is_served_while_four_of_the_eight_think_about_a_token_and_veto_it_then() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=32) as system:
            eight = [await start(system, one, 2.0, program=WATCHING if one % 2 else WAITING) for one in range(8)]

            async def all_sleep() -> bool:
                stats = await system.controller.stats()
                return stats.num_free_blocks == 0 and stats.num_waiting_calls == 4

            await until(all_sleep)
            ninth = await (await start(system, 8, 0, is_patient=False)).outcome()
            check(8, ninth.result)
            assert (await system.controller.stats()).num_waiting_calls == 4  # they still think
            for number, run in enumerate(eight):
                check(number, (await run.outcome()).result)

    in_loop(scenario)


def test_runs_that_wait_for_each_others_pages_equal_their_solo_runs() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=12) as system:
            runs = [await start(system, number, 0, is_patient=False) for number in range(9)]
            outcomes = await asyncio.gather(*(run.outcome() for run in runs))
            for number, outcome in enumerate(outcomes):
                check(number, outcome.result)

    in_loop(scenario)


HOLDING = """
from loopwright import Context, emit, export_context, receive
async def main():
    ctx = Context()
    ctx.append("held by name")
    await ctx.generate(max_tokens=20, ignore_eos=True)
    await export_context(ctx, "kept")
    emit({"kept": True})
    await receive()
"""


def test_a_run_that_a_silent_one_keeps_from_its_pages_ends_with_an_error_that_names_it_and_others_go_on() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=12, control=ControlConfig(max_held_s=0.2)) as system:
            silent = await system.start(HOLDING)
            events = system.launcher.events(silent.run_id)
            while not isinstance(await anext(events), Emit):  # what it says once its pages are lent
                pass
            source = WAITING.replace("SECONDS", "0")
            large = await system.start(source, prompt="x" * 170, num_tokens=8, is_patient=False)
            final = (await large.outcome()).final
            assert (final.code, final.error and final.error.type) == ("limit", "OutOfPages")
            assert final.error is not None
            assert f"2 by run {silent.run_id} of (uploaded), silent for" in final.error.message
            check(1, (await (await start(system, 1, 0, is_patient=False)).outcome()).result)
            await system.launcher.cancel(silent.run_id)
            await silent.outcome()

    in_loop(scenario)
