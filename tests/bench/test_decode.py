"""The decode suite against a control layer whose steps cost a known time."""

import pytest
from bench_fakes import FakeControl, FakeRuns, FakeSystem, cases

from loopwright.bench.decode import (
    NUM_TOKENS_IN,
    floor_rows,
    make_prompts,
    measure_batches,
    measure_prompts,
    run_batch,
)
from loopwright.core.calls import Generate
from loopwright.core.clock import FakeClock
from loopwright.core.errors import InternalError


async def test_tokens_per_second_count_every_sequence_and_the_whole_time():
    clock = FakeClock()
    control = FakeControl(clock, step_s=0.5)
    timing = await run_batch(control, clock, make_prompts(8, 260))
    assert timing.tokens_per_s == pytest.approx(8 / 0.5)
    assert timing.ttft_s == pytest.approx(0.5)
    assert control.num_open == 0


async def test_a_sequence_is_one_greedy_segment_without_stop_in_a_session_of_its_own():
    clock = FakeClock()
    control = FakeControl(clock, step_s=0.5)
    prompts = make_prompts(2, 260)
    await run_batch(control, clock, prompts)
    segments = [call for session in control.sessions for call in session.calls if isinstance(call, Generate)]
    assert [list(segment.tokens) for segment in segments] == prompts
    assert all(segment.sampling.temperature == 0 and not segment.stop_tokens for segment in segments)


async def test_the_rows_are_speed_and_first_token_of_each_batch_size():
    clock = FakeClock()
    rows = await measure_batches(FakeControl(clock, step_s=0.5), clock, num_rounds=2)
    assert cases(rows) == [(f"batch={size}", metric) for size in (1, 8, 32) for metric in ("tokens_per_s", "ttft_ms")]
    assert [row.value for row in rows] == [2.0, 500.0, 16.0, 500.0, 64.0, 500.0]


async def test_a_long_prompt_counts_its_tokens_until_its_first_token():
    clock = FakeClock()
    control = FakeControl(clock, step_s=0.5)
    rows = await measure_prompts(control, clock, num_rounds=2)
    assert [(row.case, row.value, row.runs) for row in rows] == [("prompt=512", 1024, 2), ("prompt=2048", 4096, 2)]
    segments = [call for session in control.sessions for call in session.calls if isinstance(call, Generate)]
    assert [(len(one.tokens), one.max_tokens) for one in segments] == [(512, 1)] * 2 + [(2048, 1)] * 2


async def test_a_segment_that_ends_early_is_no_measurement():
    clock = FakeClock()
    control = FakeControl(clock, step_s=0.5, num_tokens=3)
    with pytest.raises(InternalError, match="3 of 128"):
        await run_batch(control, clock, make_prompts(2, 260))
    assert control.num_open == 0


def test_a_floor_is_a_row_of_its_own_without_peer_or_ratio():
    clock = FakeClock()
    system = FakeSystem(FakeRuns(clock, 1), FakeControl(clock, 1), step_weight_bytes=500)
    rows = floor_rows(system, bandwidth=10_000.0)
    assert [(row.case, row.value, row.peer, row.ratio) for row in rows] == [
        ("case=floor/batch=1", 20.0, None, None),
        ("case=floor/batch=8", 160.0, None, None),
        ("case=floor/batch=32", 640.0, None, None),
    ]


def test_prompts_repeat_and_differ_and_leave_low_ids_out():
    prompts = make_prompts(32, 49_152)
    assert prompts == make_prompts(32, 49_152)
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 32
    assert {len(prompt) for prompt in prompts} == {NUM_TOKENS_IN}
    assert min(min(prompt) for prompt in prompts) >= 1000
