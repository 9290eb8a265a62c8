"""Where a run's time went: the phases equal those of a walk moment by moment, and add up to the whole."""

from collections import Counter
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from loopwright.runtime.timeline import MAX_PENDING, MAX_SPANS, PHASES, Phase, Timeline

END = 30
spans = st.lists(st.tuples(st.sampled_from(PHASES), st.integers(-3, END + 3), st.integers(-3, END + 3)), max_size=12)


def walked(added: list[tuple[Phase, int, int]], base: Phase) -> list[Phase]:
    """The phase of each second, looked up one by one."""
    return [
        min((phase for phase, start, end in added if start <= at < end), key=PHASES.index, default=base)
        for at in range(END)
    ]


@given(spans, st.sampled_from(["wait", "program"]), st.lists(st.integers(0, END), max_size=3))
def test_each_moment_has_the_first_of_its_phases(added: list[tuple[Phase, int, int]], base: Phase, cuts: list[int]):
    timeline = Timeline(0.0, base)
    for phase, start, end in added:
        timeline.add(phase, start, end)
    for until in [*sorted(cuts), END]:
        timeline.settle(until)
    expected = walked(added, base)
    told = [(one.phase, one.start_s, one.seconds) for one in timeline.stretches()]
    places = [(phase, len(list(same))) for phase, same in groupby(expected)]
    starts = [sum(length for _, length in places[:place]) for place in range(len(places))]
    assert told == [(phase, start, length) for (phase, length), start in zip(places, starts, strict=True)]
    assert timeline.totals() == Counter(expected)


def test_what_is_said_late_counts_where_nothing_is_decided_yet() -> None:
    timeline = Timeline(0.0, "wait")
    timeline.add("decode", 8.0, 12.0)
    timeline.settle(10.0)
    timeline.add("queue", 5.0, 14.0)
    timeline.settle(15.0)
    assert timeline.totals() == {"wait": 9.0, "decode": 4.0, "queue": 2.0}


def test_many_stretches_become_one_for_each_phase_and_still_add_up() -> None:
    timeline = Timeline(0.0, "program")
    for number in range(1000):
        timeline.add("decode", 2.0 * number, 2.0 * number + 1)
    timeline.settle(2000.0)
    stretches = timeline.stretches()
    assert len(stretches) == MAX_SPANS + 2
    assert {one.phase: one.count for one in stretches[-2:]} == {"decode": 936, "program": 936}
    assert timeline.totals() == {"decode": 1000.0, "program": 1000.0}


def test_it_is_full_seldom_however_long_something_goes_on() -> None:
    timeline = Timeline(0.0, "program")
    num_settled = 0
    for number in range(100 * MAX_PENDING):
        timeline.add("decode", 2.0 * number, 2.0 * number + 1)
        if timeline.is_full:
            num_settled += 1
            timeline.settle(10.0)  # a call that began there is still open
    assert num_settled == 7, "each time twice as many"
    timeline.settle(200.0 * MAX_PENDING)
    assert timeline.totals() == {"decode": 100.0 * MAX_PENDING, "program": 100.0 * MAX_PENDING}
    for number in range(3 * MAX_PENDING):
        timeline.add("decode", 200.0 * MAX_PENDING + number, 200.0 * MAX_PENDING + number + 1)
        if timeline.is_full:
            num_settled += 1
            timeline.settle(200.0 * MAX_PENDING + number + 1)
    assert num_settled == 9, "and as seldom as before once it is over"
