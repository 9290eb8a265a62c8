"""A context under a window while and after its segments give pages back: failures, forks, leaving early. Equal to a
dense mask in the oracle."""

from concurrent.futures import Future
from typing import Any

import pytest
from test_context_edits import NATIVE_ONLY, PROMPT, dense, result_of

from loopwright.core.batch import Batch, StepResult
from loopwright.core.executor import EngineShape, Executor
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from system_rig import byte_system, byte_text, in_loop, system_over
from view_model import DenseContext

SIZE, SINKS = 20, 1  # two pages or three, and one of sinks


def windowed(tokens: list[int] = PROMPT) -> DenseContext:
    context = dense(*tokens)
    context.window(SIZE, SINKS)
    return context


class FailsOnce:
    """An executor whose first step after so many rows of one token fails."""

    def __init__(self, inner: Executor, num_rows: int) -> None:
        self._inner, self._num_left = inner, num_rows

    @property
    def shape(self) -> EngineShape:
        return self._inner.shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        self._num_left -= sum(row.num_tokens == 1 for row in batch.rows)
        if self._num_left > 0 or self._num_left < -1000:
            return self._inner.submit(batch)
        self._num_left = -2000
        failed: Future[StepResult] = Future()
        failed.set_exception(RuntimeError("device lost"))
        return failed

    def close(self) -> None:
        self._inner.close()


def test_a_segment_that_is_longer_than_any_pool_could_hold_equals_a_dense_mask() -> None:
    body = """
ctx = Context()
ctx.append(ids)
await ctx.window(20, 1)
most, tokens = 0, []
stream = ctx.stream(max_tokens=200, ignore_eos=True)
async for chunk in stream:
    most = max(most, (await ctx._queue.debug_query())["num_pages"])
after = await ctx.generate(max_tokens=20, ignore_eos=True)
return stream.turn.tokens, stream.turn.logprobs, after.tokens, most, ctx.num_pages
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=8, runtime=NATIVE_ONLY) as system:
            tokens, logprobs, after, most, num_pages = await result_of(system, body, ids=PROMPT)
            context = windowed()
            assert (tokens, pytest.approx(logprobs, abs=1e-5)) == context.generate(200)
            assert after == context.generate(20)[0]
            assert most <= 5  # the prompt's own five, of which the window leaves three
            assert num_pages <= 4

    in_loop(scenario)


@pytest.mark.parametrize("num_rows", [2, 30, 70])
def test_a_context_whose_windowed_segment_failed_goes_on_as_if_that_had_not_begun(num_rows: int) -> None:
    body = """
ctx, errors = Context(), []
ctx.append(ids)
await ctx.window(20, 1)
fork = await ctx.fork()
try:
    await ctx.generate(max_tokens=100, ignore_eos=True)
except LoopwrightError as error:
    errors.append(str(error))
turns = [await one.generate(max_tokens=40, ignore_eos=True) for one in (ctx, fork)]
return errors, [turn.tokens for turn in turns], [turn.logprobs for turn in turns]
"""

    async def scenario() -> None:
        executor = FailsOnce(TorchExecutor(byte_model(), num_blocks=24, num_slots=8, num_threads=1), num_rows)
        try:
            async with system_over(executor, byte_text(executor), runtime=NATIVE_ONLY) as system:
                errors, tokens, logprobs = await result_of(system, body, ids=PROMPT)
                assert "device lost" in errors[0]
                expected, own = windowed().generate(40)
                assert tokens == [expected, expected]
                assert logprobs == [pytest.approx(own, abs=1e-5)] * 2
        finally:
            executor.close()

    in_loop(scenario)


@pytest.mark.parametrize("leave", ["break", "cancel", "close", "close before it began"])
def test_leaving_a_windowed_segment_in_its_middle_leaves_no_page_and_a_context_that_goes_on(leave: str) -> None:
    body = """
from loopwright.sdk.resources import debug_query
ctx = Context()
ctx.append(ids)
await ctx.window(20, 1)
said = []
if leave == "break":
    async for chunk in ctx.stream(max_tokens=200, ignore_eos=True):
        said += chunk.tokens
        if len(said) > 60:
            break
elif leave == "close before it began":
    task = asyncio.create_task(ctx.generate(max_tokens=200, ignore_eos=True))
    await asyncio.sleep(0)
    ctx.close()
    task.cancel()
else:
    task = asyncio.create_task(ctx.generate(max_tokens=200, ignore_eos=True))
    for _ in range(40):  # of which most find it under way
        await ctx._queue.debug_query()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if leave == "close":
        ctx.close()
if leave in ("break", "cancel"):
    told = list(ctx.tokens)
    turn = await ctx.generate(max_tokens=20, ignore_eos=True)
    return list(ctx.tokens)
for _ in range(3000):
    if not (await debug_query())["num_pages"]:
        return []
    await asyncio.sleep(0.001)  # an answer that is there at once lets nobody else run
raise AssertionError("pages are held for ever")
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=24, runtime=NATIVE_ONLY) as system:
            tokens: Any = await result_of(system, body, ids=PROMPT, leave=leave)
            if leave in ("break", "cancel"):
                context = windowed()
                context.generate(len(tokens) - len(PROMPT))
                assert tokens == context.tokens

    in_loop(scenario)


def test_forks_of_what_a_windowed_segment_left_and_edits_of_it_equal_a_dense_mask() -> None:
    body = """
ctx = Context()
ctx.append(ids)
await ctx.window(20, 1)
await ctx.generate(max_tokens=90, ignore_eos=True)
fork = await ctx.fork()
deeper = await fork.fork()
await fork.truncate(len(ids) + 20)
await deeper.window(None)
told = []
for one in (ctx, fork, deeper):
    told.append((await one.generate(max_tokens=30, ignore_eos=True)).tokens)
    one.close()
return told
"""

    async def scenario() -> None:
        async with byte_system(num_blocks=40, runtime=NATIVE_ONLY) as system:
            context = windowed()
            context.generate(90)
            fork, deeper = context.fork(), context.fork()
            fork.truncate(len(PROMPT) + 20)
            deeper.window(None, 0)
            told = await result_of(system, body, ids=PROMPT)
            assert told == [one.generate(30)[0] for one in (context, fork, deeper)]

    in_loop(scenario)
