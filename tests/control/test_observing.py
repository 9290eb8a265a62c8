"""What control tells of its steps and calls, to the second: the clock moves between steps as the test says."""

import asyncio
from collections.abc import Sequence

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import CreateQueue, ForwardText, Sampling
from loopwright.core.ids import PageName, QueueName
from loopwright.core.instrument import Meter
from loopwright.core.metrics import METRICS, Series
from loopwright.core.results import CallTiming

from .rig import QUEUE, Rig, generate

BLOCK_BYTES = 1000


class Observed(Rig):
    """A rig that measures, whose steps take as long as the test says."""

    def __init__(self, num_blocks: int = 64, config: ControlConfig | None = None) -> None:
        super().__init__(num_blocks=num_blocks, config=config, meter=Meter({"model": "fake"}))
        self.controller._observer._block_bytes = BLOCK_BYTES

    def step_for(self, seconds: float) -> bool:
        batch = self.controller.schedule()
        if batch is None:
            return False
        self.clock.advance(seconds)
        self.controller.complete(self.executor.run(batch))
        self.controller.check_integrity()
        return True

    def series(self) -> dict[str, Series]:
        """By name; where there are labels beside the model, by name and those."""
        (series,) = asyncio.run(self.controller.metrics()).sources.values()
        return {" ".join((one.metric, *one.labels[1:])): one for one in series}

    def value(self, name: str) -> float:
        found = self.series().get(name)
        return 0.0 if found is None else found.value


def observed(one: Series) -> dict[float, int]:
    """Of a histogram: how many were in the bucket up to each bound; the unbounded one is 0."""
    bounds = (*METRICS[one.metric].bounds, 0)
    return {bound: count for bound, count in zip(bounds, one.counts, strict=True) if count}


def forward(tokens: Sequence[int], kv_len: int = 0, queue: QueueName = QUEUE) -> ForwardText:
    return ForwardText(
        queue=queue, pages=(), grow_from=PageName(kv_len + 500), kv_len=0, tokens=tuple(tokens),
        positions=tuple(range(len(tokens))), sampling=Sampling(),
    )  # fmt: skip


def test_a_segment_is_timed_from_issue_to_end_and_each_gap_between_its_tokens_is_seen() -> None:
    rig = Observed()
    run = rig.open("agent")
    rig.clock.advance(10.0)
    call = run.submit(generate(range(5), max_tokens=4))
    rig.clock.advance(0.5)
    for seconds in (1.0, 0.019, 0.29, 0.019):
        assert rig.step_for(seconds)
    completion = run.final(call)
    assert completion is not None
    timing = completion.timing
    assert timing == CallTiming(10.0, 10.5, 11.5, pytest.approx(11.828), 5, 0, 4)
    series = rig.series()
    gaps = series["inter_token_latency_seconds"]
    assert observed(gaps) == {0.02: 2, 0.3: 1}
    assert gaps.value == pytest.approx(0.328)
    assert [series[f"request_{name}_time_seconds"].value for name in ("queue", "prefill", "decode")] == [
        0.5, 1.0, pytest.approx(0.328),
    ]  # fmt: skip
    counts = [series[f"{name}  agent"].value for name in ("prompt_tokens", "generation_tokens")]
    assert counts == [5, 4]
    assert "prompt_tokens_cached  agent" not in series


def test_gaps_of_segments_that_share_steps_are_counted_for_each_and_late_ones_in_full() -> None:
    rig = Observed(config=ControlConfig(max_batch_rows=2, max_batch_tokens=64))
    runs = [rig.open(f"run {number}") for number in range(3)]
    for number, run in enumerate(runs):
        run.submit(generate([number], max_tokens=3))
    while rig.step_for(0.1):
        pass
    gaps = rig.series()["inter_token_latency_seconds"]
    assert sum(gaps.counts) == 3 * 2, "two gaps of each"
    # Three rows in steps of two: rows take turns, and every gap is counted from the row's own last token.
    assert [batch.num_rows for batch in rig.executor.batches] == [2, 2, 2, 2, 1]
    assert gaps.value == pytest.approx(sum(gap_sums(rig)))
    assert len(observed(gaps)) > 1


def gap_sums(rig: Observed) -> list[float]:
    """The same from the batches themselves: between the steps in which each segment had a row."""
    steps: dict[int, list[int]] = {}
    for number, batch in enumerate(rig.executor.batches):
        for row in batch.all_rows:
            steps.setdefault(row.block_ids[0], []).append(number)
    return [0.1 * (places[-1] - places[0]) for places in steps.values()]


def test_rows_of_a_programs_own_loop_are_no_segments_gaps_and_their_tokens_are_counted() -> None:
    rig = Observed()
    run = rig.open("loop")
    run.submit(forward(range(6)))
    assert rig.step_for(0.1)
    run.submit(forward([7], 6))
    assert rig.step_for(0.1)
    series = rig.series()
    assert "inter_token_latency_seconds" not in series
    assert (series["prompt_tokens  loop"].value, series["generation_tokens  loop"].value) == (6, 2)


def test_steps_are_counted_by_size_and_shape() -> None:
    rig = Observed()
    runs = [rig.open(f"run {number}") for number in range(3)]
    for run in runs:
        run.submit(generate(range(6), max_tokens=2))
    while rig.step_for(0.1):
        pass
    series = rig.series()
    assert observed(series["step_rows"]) == {4: 2}
    assert (series["step_rows"].value, series["step_tokens"].value) == (6, 21)
    assert series["step_shapes 0 32"].value == 1
    assert series["step_shapes 4 0"].value == 1


def test_kv_counts_for_as_long_as_it_is_held_and_also_while_nothing_happens() -> None:
    rig = Observed()
    run = rig.open("agent")
    call = run.submit(generate(range(8), max_tokens=2))  # blocks of 4: two, and a third when it goes on
    assert rig.step_for(1.0)
    assert rig.step_for(2.0)
    assert run.segment(call).num_pages == 3
    assert rig.value("kv_byte_seconds  agent") == BLOCK_BYTES * (2 * 1.0 + 3 * 2.0)
    rig.clock.advance(4.0)
    assert run.now(CreateQueue(queue=QueueName(9))).error is None  # the moment moves on
    assert rig.value("kv_byte_seconds  agent") == BLOCK_BYTES * (8.0 + 3 * 4.0)
    run.session.close()
    rig.clock.advance(100.0)
    rig.open("other")
    assert rig.value("kv_byte_seconds  agent") == BLOCK_BYTES * 20.0
    rig.assert_all_free()


def test_the_prefix_cache_says_what_was_looked_for_and_what_it_had() -> None:
    rig = Observed()
    for name in ("first", "second"):
        run = rig.open(name)
        call = run.submit(generate(range(10), max_tokens=1))
        rig.drain()
        assert run.segment(call).reason == "length"
    assert (rig.value("prefix_cache_queries"), rig.value("prefix_cache_hits")) == (20, 8)
    assert rig.value("prompt_tokens_cached  second") == 8
    assert rig.value("prompt_tokens  second") == 10


def test_what_is_taken_away_is_counted_by_reason() -> None:
    rig = Observed(num_blocks=8, config=ControlConfig(max_idle_s=0.0))
    runs = [rig.open(f"run {number}") for number in range(2)]
    calls = [run.submit(generate([9 * number + 1] * 6, max_tokens=20)) for number, run in enumerate(runs)]
    while rig.step_for(0.1):
        pass
    assert [run.segment(call).reason for run, call in zip(runs, calls, strict=True)] == ["length", "length"]
    assert rig.value("suspensions") >= 1
    assert rig.value("kv_evictions suspended") >= 1
    assert rig.value("num_requests_suspended") == 0
    third = rig.open("third")  # while the others hold what they have, and ask for nothing
    call = third.submit(generate([40] * 20, max_tokens=1))
    rig.drain()
    assert third.segment(call).reason == "length"
    assert rig.value("kv_evictions idle") >= 1
    for run in runs:
        run.session.close()
    third.session.close()
    fourth = rig.open("fourth")
    fourth.submit(generate([50] * 31, max_tokens=1))
    rig.drain()
    assert rig.value("kv_evictions cache") >= 1


def test_a_suspended_segments_gap_is_counted_in_full() -> None:
    rig = Observed(num_blocks=8, config=ControlConfig(max_idle_s=0.0))
    runs = [rig.open(f"run {number}") for number in range(2)]
    for number, run in enumerate(runs):
        run.submit(generate([9 * number + 1] * 6, max_tokens=20))
    num_steps = 0
    while rig.step_for(0.1):
        num_steps += 1
    assert rig.value("suspensions") >= 1
    gaps = rig.series()["inter_token_latency_seconds"]
    assert sum(gaps.counts) == 2 * 19
    completed = [completion.timing for run in runs for completion in run.finals.values() if completion.timing]
    completed += [one.timing for run in runs for one in run.session.inbox.take() if one.timing]
    spans = [timing.ended_s - timing.first_s for timing in completed if timing.first_s is not None]
    assert gaps.value == pytest.approx(sum(spans)), "gaps add up to the time from first token to last"
    assert max(observed(gaps)) > 0.1


def test_calls_that_never_ran_and_failed_steps_are_told_as_such() -> None:
    rig = Observed()
    run = rig.open("agent")
    rig.executor.fault = RuntimeError("the device is gone")
    call = run.submit(generate(range(5), max_tokens=4))
    assert rig.step()
    completion = run.final(call)
    assert completion is not None
    assert completion.error is not None
    assert completion.timing == CallTiming(0.0, 0.0, None, 0.0, 5, 0, 0)
    assert rig.value("failed_steps") == 1
    other = rig.open("other")
    waiting = other.submit(generate(range(5), max_tokens=4))
    other.session.interrupt(waiting)
    cancelled = other.final(waiting)
    assert cancelled is not None
    assert cancelled.timing == CallTiming(0.0, None, None, 0.0, 0, 0, 0)


def test_gauges_say_what_is_so_now() -> None:
    rig = Observed(num_blocks=10)
    run = rig.open("agent")
    run.submit(generate(range(8), max_tokens=4))
    assert (rig.value("num_calls_waiting"), rig.value("num_calls_running")) == (1, 0)
    assert rig.controller.schedule() is not None
    assert (rig.value("num_calls_waiting"), rig.value("num_calls_running")) == (0, 1)
    assert rig.value("num_kv_blocks") == 10
    assert rig.value("kv_cache_usage_perc") == pytest.approx(0.2)


def test_without_a_meter_nothing_is_measured() -> None:
    rig = Rig()
    run = rig.open("agent")
    call = run.submit(generate(range(5), max_tokens=4))
    rig.drain()
    completion = run.final(call)
    assert completion is not None
    assert completion.timing is None
    assert asyncio.run(rig.controller.metrics()).sources == {}
