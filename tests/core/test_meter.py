"""Counting: sums, buckets, and labels of which somebody outside chooses the values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core import metrics
from loopwright.core.instrument import MAX_LABEL_VALUES, OTHER, Meter
from loopwright.core.metrics import METRICS, Measured, Metric, Series


def test_a_histogram_counts_each_value_in_the_first_bucket_that_holds_it() -> None:
    sizes = Metric("histogram", "sizes", "", bounds=(1, 2, 4))
    meter = Meter()
    for value, times in ((1, 1), (1.5, 2), (4, 1), (5, 3)):
        meter.histogram(sizes).observe(value, times)
    assert meter.series() == (Series("sizes", (), 1 + 3 + 4 + 15, (1, 2, 1, 3)),)


@given(st.lists(st.floats(0, 6) | st.sampled_from([1.0, 2.0, 4.0])), st.integers(1, 3))
def test_values_told_together_are_as_if_told_one_by_one(values: list[float], times: int) -> None:
    sizes = Metric("histogram", "sizes", "", bounds=(1, 2, 4))
    one, all_at_once = Meter().histogram(sizes), Meter().histogram(sizes)
    for value in values:
        one.observe(value, times)
    all_at_once.observe_all(list(values), times)
    assert all_at_once.counts == one.counts
    assert all_at_once.sum == pytest.approx(one.sum)


def test_labels_that_are_the_same_throughout_stand_in_their_places() -> None:
    meter = Meter({"model": "tiny"})
    meter.add(metrics.PROMPT_TOKENS, 3, ("t", "chat"))
    meter.add(metrics.PROMPT_TOKENS, 4, ("t", "chat"))
    meter.add(metrics.FAILED_STEPS)
    gauges = [(metrics.KV_USAGE, 0.5, ())]
    assert meter.series(gauges) == (
        Series("prompt_tokens", ("tiny", "t", "chat"), 7),
        Series("failed_steps", ("tiny",), 1),
        Series("kv_cache_usage_perc", ("tiny",), 0.5),
    )


def test_only_so_many_programs_and_tenants_are_told_apart_and_none_is_lost() -> None:
    meter = Meter()
    for number in range(MAX_LABEL_VALUES + 50):
        meter.add(metrics.PROGRAM_CPU_S, 1, ("t", f"program {number}"))
        meter.histogram(metrics.E2E_S, ("t", f"program {number}")).observe(1.0)
    for metric in (metrics.PROGRAM_CPU_S, metrics.E2E_S):
        by_program = {one.labels[1]: one for one in meter.series() if one.metric == metric.name}
        assert len(by_program) == MAX_LABEL_VALUES + 1
        assert by_program[OTHER].value == 50
        assert by_program["program 7"].value == 1
    assert sum(by_program[OTHER].counts) == 50


def test_what_two_answers_have_of_one_source_counts_once() -> None:
    shared = (Series("steps", (), 5),)
    one, other = Measured({"control": shared, "a": ()}), Measured({"control": shared, "b": ()})
    assert (one | other).sources == {"control": shared, "a": (), "b": ()}


def test_every_metric_has_a_meaning_and_a_histogram_has_rising_bounds() -> None:
    assert [one.name for one in METRICS.values() if not one.meaning.endswith((".", "(elsewhere: preemptions)."))] == []
    for one in METRICS.values():
        assert (one.kind == "histogram") == bool(one.bounds), one.name
        assert list(one.bounds) == sorted(set(one.bounds)), one.name
