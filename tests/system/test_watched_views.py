"""Watching, and samplers that Python runs, in contexts that do not see all: equal to a dense mask in the oracle."""

from typing import Any

import numpy as np
import pytest

from sampler_rig import source_of
from system_rig import byte_system, in_loop
from view_model import DenseContext

SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]
PROMPT = "The quick brown fox jumps over the lazy dog, again and again, until it is tired of it. "
VIEWS = {
    "hidden": [("hide", [[3, 21]])],
    "a window": [("window", [20, 4])],
    "a hole in a window": [("hide", [[5, 9]]), ("window", [40, 10])],
}
NUM_TOKENS = 40

WATCH = """
from loopwright import *

async def main(prompt, views, num_tokens):
    ctx = Context(seed=5)
    ctx.append(prompt)
    for verb, values in views:
        await getattr(ctx, verb)(*values)
    vetoed = set()
    async with ctx.watch(window=7, max_tokens=num_tokens, ignore_eos=True) as watched:
        async for token in watched:
            if token.index % 5 == 2 and token.index not in vetoed:
                vetoed.add(token.index)
                watched.veto()
    after = await ctx.generate(max_tokens=3, ignore_eos=True)
    turn = watched.turn
    ctx.close()
    return [turn.tokens, turn.logprobs, after.tokens, after.logprobs]
"""

FALLBACK = """
async def main(prompt, views, num_tokens):
    ctx = Context(seed=5)
    ctx.append(prompt)
    for verb, values in views:
        await getattr(ctx, verb)(*values)
    turn = await ctx.generate(
        sampler=greedy, sampler_fallback=True, max_tokens=num_tokens, ignore_eos=True
    )
    after = await ctx.generate(max_tokens=3, ignore_eos=True)
    ctx.close()
    return [turn.tokens, turn.logprobs, after.tokens, after.logprobs]
"""


def untraceable_greedy() -> str:
    source = source_of("greedy").replace("):\n", "):\n    if scores[0] > 1e30:\n        return None\n", 1)
    return f"from loopwright import *\n{source}\n{FALLBACK}"


def dense(views: list[tuple[str, list[Any]]]) -> DenseContext:
    context = DenseContext()
    context.append([256, *PROMPT.encode()])
    for verb, values in views:
        getattr(context, verb)(*(values[0] if verb == "hide" else values))
    return context


def looked_at(context: DenseContext, num_tokens: int, *, vetoes: bool) -> tuple[list[int], list[float]]:
    """Greedy, but that the first choice of some places is vetoed."""
    tokens, logprobs = [], []
    for index in range(num_tokens):
        row = context.logprobs()[-1]
        token = int(np.argsort(-row, kind="stable")[1 if vetoes and index % 5 == 2 else 0])
        tokens.append(token)
        logprobs.append(float(row[token]))
        context.append([token])
    return tokens, logprobs


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("has_vetoes", [True, False], ids=["watched", "fallback"])
def test_a_segment_that_the_program_takes_part_in_sees_what_the_view_leaves(
    view: str, sandbox: str, has_vetoes: bool
) -> None:
    context = dense(VIEWS[view])
    num_tokens = NUM_TOKENS if has_vetoes else 12
    expected, own = looked_at(context, num_tokens, vetoes=has_vetoes)
    next_tokens, next_own = looked_at(context, 3, vetoes=False)

    async def scenario() -> None:
        async with byte_system() as system:
            source = WATCH if has_vetoes else untraceable_greedy()
            arguments = {"prompt": PROMPT, "views": VIEWS[view], "num_tokens": num_tokens}
            tokens, logprobs, after, after_logprobs = (await system.run(source, sandbox, **arguments)).result
            assert [*tokens, *after] == [*expected, *next_tokens]
            assert [*logprobs, *after_logprobs] == pytest.approx([*own, *next_own], abs=1e-4)

    in_loop(scenario)


def test_what_is_said_of_a_watched_segment_needs_no_room_among_the_open_calls() -> None:
    source = """
import asyncio
from loopwright import *

async def main():
    ctx = Context(seed=5)
    ctx.append("The quick brown fox")
    held, vetoed = [], False
    async with asyncio.timeout(60), ctx.watch(window=1, max_tokens=6, ignore_eos=True) as watched:
        async for token in watched:
            if not held:  # the segment is open too: 1024 is the limit, and one more would be refused
                held = [ctx._queue.synchronize() for _ in range(1023)]
            if not vetoed:
                vetoed = True
                watched.veto()
    return [len(held), len(await asyncio.gather(*held)), watched.turn.tokens]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            num_held, num_answers, tokens = (await system.run(source)).result
            assert num_held == num_answers == 1023
            assert len(tokens) == 6

    in_loop(scenario)
