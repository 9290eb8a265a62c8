"""Closing, receiving, the task that serves, and the statistics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loopwright.core.calls import AllocateEmbeds, AllocatePages, FreePages, Sampling, Synchronize
from loopwright.core.control import ControlLimits
from loopwright.core.errors import BadRequest, Cancelled
from loopwright.core.ids import CallId, EmbedName, PageName, RunId
from loopwright.core.results import Segment

from .reference import NaiveContext
from .rig import QUEUE, Rig, generate

SAMPLING = Sampling(temperature=1.0, seed=3)


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(rig.controller.serve())
        try:
            yield
        finally:
            task.cancel()


def test_closing_between_steps_frees_everything_at_once() -> None:
    rig = Rig()
    run = rig.open("a", queues=(1, 2))
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(1),)))
    run.now(AllocateEmbeds(queue=QUEUE, embeds=(EmbedName(1),)))
    run.submit(generate((5, 6), queue=1, grow_from=10))
    run.submit(generate((5, 6), queue=1, grow_from=20))
    run.submit(generate((5, 6), queue=2, grow_from=30))
    rig.step()
    run.session.close()
    rig.assert_all_free()
    assert not rig.step()
    run.session.close()
    run.session.submit(CallId(77), Synchronize(queue=QUEUE))
    assert run.session.inbox.take() == []


def test_closing_while_a_step_runs_frees_the_rest_when_it_is_over_and_harms_no_neighbour() -> None:
    rig = Rig()
    run, neighbour = rig.open("a"), rig.open("b")
    run.submit(generate(range(2, 12), grow_from=10))
    run.submit(Synchronize(queue=QUEUE))
    call = neighbour.submit(generate((5, 6), sampling=SAMPLING, max_tokens=5))
    rig.step()
    batch = rig.controller.schedule()
    assert batch is not None
    num_free = rig.controller._resources.blocks.num_free
    run.session.close()
    rig.controller.check_integrity()
    assert rig.controller._resources.blocks.num_free == num_free  # the step may still write to its blocks
    rig.controller.complete(rig.executor.run(batch))
    rig.controller.check_integrity()
    assert rig.controller._resources.blocks.num_free == num_free + 3
    rig.drain()
    assert list(neighbour.segment(call).tokens) == NaiveContext().generate((5, 6), (0, 1), SAMPLING, 5)
    assert rig.open("a").order() == [1]  # only the new run's own create_queue


def test_a_run_id_that_is_open_cannot_be_opened_again() -> None:
    rig = Rig()
    rig.open("a")
    with pytest.raises(BadRequest, match="run a is open already"):
        rig.controller.open(RunId("a"), ControlLimits())


def test_blocks_freed_by_a_closed_run_wake_those_that_wait() -> None:
    async def scenario() -> Segment:
        rig = Rig(num_blocks=4)
        holder, run = rig.open("holder"), rig.open("a")
        holder.now(AllocatePages(queue=QUEUE, pages=tuple(PageName(n) for n in range(4))))
        async with serving(rig):
            run.submit(generate((5, 6), sampling=SAMPLING, max_tokens=5))
            for _ in range(5):
                await asyncio.sleep(0)
            assert run.session.inbox.take() == []
            holder.session.close()
            (completion,) = await run.session.receive()
        assert isinstance(completion.result, Segment)
        return completion.result

    assert list(asyncio.run(scenario()).tokens) == NaiveContext().generate((5, 6), (0, 1), SAMPLING, 5)


def test_receive_waits_for_completions_and_is_cancelled_by_close() -> None:
    async def scenario() -> None:
        rig = Rig()
        run = rig.open("a")
        async with serving(rig):
            run.submit(generate((5, 6), sampling=SAMPLING, max_tokens=3, progress=True))
            received = []
            while len(received) < 4:
                received += await run.session.receive()
            assert [completion.is_final for completion in received] == [False, False, False, True]
            pending = asyncio.create_task(run.session.receive())
            await asyncio.sleep(0)
            run.session.close()
            with pytest.raises(Cancelled):
                await pending
            with pytest.raises(Cancelled):
                await run.session.receive()
        rig.assert_all_free()

    asyncio.run(scenario())


def test_what_is_answered_at_once_is_there_when_submit_returns() -> None:
    rig = Rig()
    run = rig.open("a")
    run.now(AllocatePages(queue=QUEUE, pages=(PageName(1),)))
    call_id = run.submit(Synchronize(queue=QUEUE))
    assert [one.call_id for one in run.session.take()] == [call_id]
    assert run.session.take() == []


def test_news_are_told_by_the_event_loop_once_until_they_are_taken() -> None:
    async def scenario() -> None:
        rig = Rig()
        run = rig.open("a")
        told: list[list[CallId]] = []
        run.session.when_news(lambda: told.append([one.call_id for one in run.session.take()]))
        first, second = run.submit(Synchronize(queue=QUEUE)), run.submit(Synchronize(queue=QUEUE))
        assert told == []
        await asyncio.sleep(0)
        assert told == [[first, second]]
        third = run.submit(Synchronize(queue=QUEUE))
        assert [one.call_id for one in run.session.take()] == [third]
        await asyncio.sleep(0)
        assert told == [[first, second]]
        run.submit(Synchronize(queue=QUEUE))
        run.session.close()
        await asyncio.sleep(0)
        assert told == [[first, second]]

    asyncio.run(scenario())


def test_calls_issued_while_a_step_runs_join_the_next_one() -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.executor.held = []
        run, other = rig.open("a"), rig.open("b")
        async with serving(rig):
            run.submit(generate((5, 6), max_tokens=2))
            await rig.executor.is_holding.wait()
            other.submit(generate((5, 6), max_tokens=1))
            rig.executor.release()
            await rig.executor.is_holding.wait()
            rig.executor.held, held = None, rig.executor.held
            assert [batch.num_rows for batch, _ in held] == [2]

    asyncio.run(scenario())


def test_a_fault_of_the_engine_fails_its_step_and_the_next_step_runs() -> None:
    async def scenario() -> None:
        rig = Rig()
        run, other = rig.open("a"), rig.open("b")
        async with serving(rig):
            rig.executor.fault = RuntimeError("out of memory")
            run.submit(generate((5, 6), max_tokens=2))
            (completion,) = await run.session.receive()
            assert completion.error is not None
            assert "out of memory" in completion.error.message
            other.submit(generate((5, 6), max_tokens=2))
            (completion,) = await other.session.receive()
            assert completion.error is None
            assert (await rig.controller.stats()).num_failed_steps == 1

    asyncio.run(scenario())


def test_calls_that_are_stuck_for_pages_fail_without_any_other_event() -> None:
    async def scenario() -> None:
        rig = Rig(num_blocks=2)
        run = rig.open("a")
        run.now(AllocatePages(queue=QUEUE, pages=(PageName(1),)))
        run.submit(generate(range(2, 8), max_tokens=2))
        rig.clock.advance(1)
        async with serving(rig):
            (completion,) = await run.session.receive()
        assert completion.error is not None
        assert completion.error.type == "OutOfPages"

    asyncio.run(scenario())


def test_statistics_count_rows_tokens_and_what_is_free() -> None:
    rig = Rig(num_blocks=10)
    run = rig.open("a", queues=(1, 2))
    run.submit(generate(range(2, 8), queue=1, grow_from=10, max_tokens=3))
    run.submit(generate((5,), queue=2, grow_from=20, max_tokens=2))
    run.submit(generate((5,), queue=2, grow_from=30, max_tokens=1))
    rig.step()
    stats = asyncio.run(rig.controller.stats())
    assert (stats.num_live_runs, stats.num_waiting_calls, stats.num_blocks, stats.num_free_blocks) == (1, 3, 10, 7)
    rig.drain()
    run.now(FreePages(queue=QUEUE, pages=(PageName(20),)))
    run.session.close()
    stats = asyncio.run(rig.controller.stats())
    assert (stats.num_steps, stats.num_rows) == (3, 6)
    assert (stats.num_prefill_tokens, stats.num_decode_tokens) == (6, 5)
    assert (stats.num_live_runs, stats.num_waiting_calls, stats.num_free_blocks) == (0, 0, 10)
