"""The launch suite against a runtime whose runs cost a known time."""

import pytest
from bench_fakes import FakeRuns, cases

from loopwright.bench.launch import (
    NUM_WARM_UP,
    burst_s,
    large,
    launch_s,
    measure_launches,
    measure_neighbours,
    percentile,
)
from loopwright.core.clock import FakeClock
from loopwright.core.errors import ProgramError


async def test_a_launch_lasts_from_start_to_the_final_event():
    clock = FakeClock()
    assert await launch_s(FakeRuns(clock, 0.25), clock) == 0.25


async def test_a_burst_lasts_until_the_last_run_has_returned():
    clock = FakeClock()
    assert await burst_s(FakeRuns(clock, 0.25), clock, 8) == 8 * 0.25


async def test_the_rows_are_those_of_the_warm_cases():
    clock = FakeClock()
    runs = FakeRuns(clock, 0.25)
    rows = await measure_launches(runs, clock, num_rounds=3, num_sequential=4, num_burst=8)
    assert cases(rows) == [
        ("case=sequential", "p50_ms"),
        ("case=sequential", "p99_ms"),
        ("case=program_200_lines/source=new", "p50_ms"),
        ("case=program_200_lines/source=new", "p99_ms"),
        ("case=program_200_lines/source=known", "p50_ms"),
        ("case=program_200_lines/source=known", "p99_ms"),
        ("case=burst/n=8", "launches_per_s"),
    ]
    assert [row.value for row in rows] == [250.0] * 6 + [4.0]
    assert {row.runs for row in rows} == {3}
    assert len(runs.specs) == NUM_WARM_UP + 1 + 3 * (4 + 4 + 4 + 8)


async def test_a_run_that_fails_ends_the_measurement_with_its_own_error():
    clock = FakeClock()
    with pytest.raises(ProgramError, match="it broke"):
        await burst_s(FakeRuns(clock, 0.25, fail_at=3), clock, 8)


def test_a_percentile_is_the_nearest_rank():
    ordered = [float(value) for value in range(1, 201)]
    assert (percentile(ordered, 0.50), percentile(ordered, 0.99), percentile([5.0], 0.99)) == (100.0, 198.0, 5.0)


def test_large_programs_have_200_lines_and_differ():
    sources = [large(number).source or "" for number in range(3)]
    assert [len(source.splitlines()) for source in sources] == [200] * 3
    assert len(set(sources)) == 3


async def test_a_new_source_is_new_at_each_launch_and_a_known_one_was_launched_before():
    clock = FakeClock()
    runs = FakeRuns(clock, 0.25)
    await measure_launches(runs, clock, num_rounds=2, num_sequential=3, num_burst=1)
    sources = [spec.source for spec in runs.specs if spec.filename == "large.py"]
    known, *measured = sources
    new = [source for source in measured if source != known]
    assert measured.count(known) == 2 * 3
    assert len(new) == len(set(new)) == 2 * 3


async def test_neighbours_have_a_row_without_a_burst_and_two_with_one():
    clock = FakeClock()
    runs = FakeRuns(clock, 0.25)
    rows = await measure_neighbours(runs, clock, num_rounds=2, num_launches=8, num_neighbours=3, quiet_s=0.0)
    assert [(row.case, row.metric, row.value) for row in rows] == [
        ("case=neighbours/burst=0", "p99_ms", 2000.0),
        ("case=neighbours/burst=8", "p99_ms", 2000.0),
        ("case=neighbours/burst=8", "launches_per_s", 4.0),
    ]
    assert [spec.filename for spec in runs.specs].count("noop.py") == 2 * 8
