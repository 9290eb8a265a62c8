"""What shares a step, who goes first, who waits for pages, and what a step costs."""

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import (
    AllocatePages,
    ClearQueue,
    CreateQueue,
    ForwardText,
    FreePages,
    Sampling,
    SetPriority,
)
from loopwright.core.control import ControlLimits
from loopwright.core.ids import PageName, QueueName

from .reference import NaiveContext
from .rig import QUEUE, Rig, generate

SAMPLING = Sampling(temperature=1.0, seed=3)


def expected(tokens: list[int] | range, max_tokens: int) -> list[int]:
    return NaiveContext().generate(tokens, range(len(tokens)), SAMPLING, max_tokens)


def test_segments_of_many_runs_share_every_step_and_equal_their_solo_runs() -> None:
    rig = Rig()
    runs = [rig.open(f"run {n}") for n in range(8)]
    prompts = [range(2 + n, 9 + n) for n in range(8)]
    calls = [
        run.submit(generate(prompt, sampling=SAMPLING, max_tokens=6)) for run, prompt in zip(runs, prompts, strict=True)
    ]
    assert rig.drain() == 6
    assert all(batch.num_rows == 8 for batch in rig.executor.batches)
    for run, call, prompt in zip(runs, calls, prompts, strict=True):
        assert list(run.segment(call).tokens) == expected(prompt, 6)


def test_rows_of_one_token_go_first_and_prompts_share_the_rest_of_the_budget() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=4, max_batch_tokens=10, prefix_cache=False))
    run = rig.open("a", queues=(1, 2, 3, 4))
    decoding = [run.submit(generate((5,), queue=n, grow_from=n * 100, max_tokens=50)) for n in (1, 2)]
    rig.step()
    prompts = [run.submit(generate(range(2, 14), queue=n, grow_from=n * 100, sampling=SAMPLING)) for n in (3, 4)]
    for _ in range(3):
        rig.step()
    assert [[row.num_tokens for row in batch.all_rows] for batch in rig.executor.batches] == [
        [1, 1], [1, 1, 8], [1, 1, 4, 4], [1, 1, 1, 7],
    ]  # fmt: skip
    rig.drain()
    assert all(list(run.segment(call).tokens) == expected(range(2, 14), 8) for call in prompts)
    assert all(run.error_type(call) is None for call in decoding)


def test_more_segments_than_rows_take_turns() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=2, max_batch_tokens=10))
    runs = [rig.open(f"run {n}") for n in range(5)]
    calls = [run.submit(generate((5,), sampling=SAMPLING, max_tokens=4)) for run in runs]
    rig.drain()
    assert len(rig.executor.batches) == 10
    assert all(list(run.segment(call).tokens) == expected([5], 4) for run, call in zip(runs, calls, strict=True))


def test_a_queue_of_high_priority_goes_before_earlier_prompts_and_one_of_low_priority_after_later_ones() -> None:
    rig = Rig(config=ControlConfig(max_batch_rows=1, max_batch_tokens=4))
    run = rig.open("a", queues=())
    for queue, priority in ((1, 0), (2, -1), (3, 0), (4, 1)):
        run.now(CreateQueue(queue=QueueName(queue), priority=priority))
    calls = [run.submit(generate(range(4), queue=n, grow_from=n * 100, max_tokens=1)) for n in (2, 1, 3, 4)]
    rig.drain()
    low, first, second, high = calls
    assert run.order()[-4:] == [high, first, second, low]


def test_a_prompt_waits_for_pages_and_runs_when_they_are_freed() -> None:
    rig = Rig(num_blocks=4)
    holder, waiter = rig.hold("holder", range(3)), rig.open("waiter")
    segment = waiter.submit(generate(range(2, 9), sampling=SAMPLING, max_tokens=2))
    forward = waiter.submit(
        ForwardText(queue=QUEUE, pages=(), grow_from=PageName(1), kv_len=0, tokens=(5,), positions=(0,))
    )
    rig.clock.advance(1000)
    assert not rig.step()  # the holder is busy elsewhere, and will free
    assert waiter.now(FreePages(queue=QUEUE, pages=(PageName(1),))).error is None  # bound at issue, block or not
    holder.now(FreePages(queue=QUEUE, pages=(PageName(1),)))
    rig.drain()
    assert list(waiter.segment(segment).tokens) == expected(range(2, 9), 2)
    assert waiter.error_type(forward) is None


def test_a_segment_that_finds_no_page_pauses_and_goes_on_with_the_same_result() -> None:
    rig = Rig(num_blocks=3)
    holder, run = rig.hold("holder", [1]), rig.open("a")
    call = run.submit(generate(range(2, 8), sampling=SAMPLING, max_tokens=6))
    assert rig.drain() == 3  # tokens at places 0 … 7; the next one needs a third page
    assert run.final(call) is None
    holder.session.close()
    rig.drain()
    assert list(run.segment(call).tokens) == expected(range(2, 8), 6)


@pytest.mark.parametrize("tenant", ["", "another"])
def test_a_call_that_a_silent_run_holds_up_fails_in_the_end_naming_it_and_what_waits_behind_goes_on(
    tenant: str,
) -> None:
    rig = Rig(num_blocks=4, config=ControlConfig(max_held_s=10.0))
    holder, big = rig.hold("holder", [1]), rig.open("big", tenant=tenant)
    small = rig.open("small", tenant=tenant)
    held_up = big.submit(generate(range(2, 15), sampling=SAMPLING, max_tokens=1))
    behind = small.submit(generate(range(2, 8), sampling=SAMPLING, max_tokens=2))
    assert rig.drain() == 0
    rig.clock.advance(9.0)
    assert small.now(SetPriority(queue=QUEUE, priority=0)).error is None  # that others do something changes nothing
    assert rig.drain() == 0
    assert rig.controller._suspension.patience_s(rig.clock.now_s()) == pytest.approx(1.0)
    rig.clock.advance(1.0)
    rig.drain()
    error = big.error(held_up)
    assert (error.type, error.retryable) == ("OutOfPages", True)
    shown = "1 of other tenants" if tenant else "1 by run holder of holder, silent for 10 s"
    assert error.message == (
        "nothing could run for 10 s for want of KV pages: 3 of the pool's 4 are free; runs that make no call hold "
        f"some that cannot be computed again: {shown}"
    )
    assert list(small.segment(behind).tokens) == expected(range(2, 8), 2)
    assert rig.controller._suspension.patience_s(rig.clock.now_s()) is None
    big.now(ClearQueue(queue=QUEUE))
    again = big.submit(generate(range(2, 15), sampling=SAMPLING, max_tokens=1))
    small.session.close()
    assert rig.drain() == 0
    rig.clock.advance(9.0)  # the first call's patience is not this one's
    assert rig.drain() == 0
    holder.session.close()
    rig.drain()
    assert list(big.segment(again).tokens) == expected(range(2, 15), 1)


def test_a_call_waits_on_while_others_that_hold_pages_are_at_work() -> None:
    rig = Rig(num_blocks=4, config=ControlConfig(max_held_s=10.0))
    rig.hold("holder", [1])
    worker, big = rig.hold("worker", [1]), rig.open("big")
    held_up = big.submit(generate(range(2, 15), sampling=SAMPLING, max_tokens=1))
    assert rig.drain() == 0
    for kv_len in (1, 2, 3):
        rig.clock.advance(9.0)
        worker.submit(generate((3,), pages=(1,), kv_len=kv_len, sampling=SAMPLING, max_tokens=1))
        assert rig.drain() == 1
    rig.clock.advance(9.0)
    assert (rig.drain(), big.final(held_up)) == (0, None)
    rig.clock.advance(1.0)
    rig.drain()
    assert "1 by run holder of holder, silent for 37 s, 1 by run worker of worker" in big.error(held_up).message


def test_when_every_call_waits_for_pages_that_cannot_be_dropped_one_of_the_run_that_holds_most_fails() -> None:
    rig = Rig(num_blocks=5, config=ControlConfig(max_stuck_s=0.5))
    big, small = rig.hold("big", range(3)), rig.hold("small", range(2))
    greedy = big.submit(generate((2,), pages=range(3), kv_len=12, sampling=SAMPLING, max_tokens=3))
    modest = small.submit(generate((2,), pages=range(2), kv_len=8, sampling=SAMPLING, max_tokens=3))
    assert (big.final(greedy), small.final(modest)) == (None, None)
    rig.clock.advance(0.4)
    assert not rig.step()
    rig.clock.advance(0.2)
    rig.drain()
    error = big.error(greedy)
    assert (error.type, error.retryable) == ("OutOfPages", True)
    assert "pool's 5" in error.message
    assert "3" in error.message
    assert small.final(modest) is None
    big.now(FreePages(queue=QUEUE, pages=tuple(map(PageName, range(3)))))
    rig.drain()
    assert small.error_type(modest) is None
    assert small.final(modest) is not None
    small.session.close()
    big.now(ClearQueue(queue=QUEUE))
    again = big.submit(generate(range(2, 12), sampling=SAMPLING, max_tokens=4))
    rig.drain()
    assert list(big.segment(again).tokens) == expected(range(2, 12), 4)


def test_after_one_call_failed_for_pages_its_run_gets_time_before_the_next_one_fails() -> None:
    rig = Rig(num_blocks=4, config=ControlConfig(max_stuck_s=0.5))
    runs = [rig.hold(name, (1, 2)) for name in "ab"]
    calls = [run.submit(generate(range(2, 8), max_tokens=3)) for run in runs]
    rig.clock.advance(1)
    rig.drain()
    assert [run.error_type(call) for run, call in zip(runs, calls, strict=True)] == [None, "OutOfPages"]
    runs[1].session.close()
    rig.drain()
    assert runs[0].error_type(calls[0]) is None
    assert runs[0].final(calls[0]) is not None


def test_more_pages_than_the_pool_or_the_run_may_ever_have_fail_at_once() -> None:
    rig = Rig(num_blocks=4)
    run, limited = rig.open("a"), rig.open("b", ControlLimits(max_pages=2))
    assert run.error_type(run.submit(generate(range(2, 20)))) == "OutOfPages"
    assert limited.error_type(limited.submit(generate(range(2, 12)))) == "OutOfPages"
    run.now(ClearQueue(queue=QUEUE))
    limited.now(ClearQueue(queue=QUEUE))
    run.session.close()
    rig.hold("holder", range(4))
    assert limited.now(AllocatePages(queue=QUEUE, pages=(PageName(1),))).error is None  # it may wait for a block
    too_many = limited.now(AllocatePages(queue=QUEUE, pages=(PageName(2), PageName(3)))).error
    assert too_many is not None
    assert (too_many.type, too_many.retryable) == ("OutOfPages", True)


def test_a_prompt_that_waits_for_pages_is_not_overtaken_by_later_prompts_that_need_some() -> None:
    rig = Rig(num_blocks=4)
    holder, first, second = rig.hold("holder", (1, 2)), rig.open("first"), rig.open("second")
    large = first.submit(generate(range(2, 14), max_tokens=1))
    little = second.submit(generate(range(2, 4), max_tokens=1))
    assert not rig.step()
    holder.now(FreePages(queue=QUEUE, pages=(PageName(1),)))
    rig.drain()
    assert (first.error_type(large), second.error_type(little)) == (None, None)


def test_a_config_whose_rows_leave_no_room_for_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batch_rows 8"):
        ControlConfig(max_batch_rows=8, max_batch_tokens=8)


def test_when_segments_take_turns_those_of_high_priority_run_more_often_and_nobody_starves() -> None:
    rig = Rig(num_blocks=100, config=ControlConfig(max_batch_rows=2, max_batch_tokens=20))
    run = rig.open("a", queues=())
    priorities = (0, 0, 1, 1, -1)
    calls = []
    for queue, priority in enumerate(priorities):
        run.now(CreateQueue(queue=QueueName(queue), priority=priority))
        call = generate((5,), queue=queue, grow_from=queue * 100, sampling=SAMPLING, max_tokens=60, progress=True)
        calls.append(run.submit(call))
    for _ in range(60):
        rig.step()
    run.order()
    num_rows = [len(run.parts[call]) for call in calls]
    assert min(num_rows[2:4]) > max(num_rows[:2]) > num_rows[4] > 0
    rig.drain()
    assert all(list(run.segment(call).tokens) == expected([5], 60) for call in calls)
