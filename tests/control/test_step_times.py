"""What drafts cost follows from the steps that ran, and is told to whoever had drafts judged."""

import pytest

from loopwright.control.step_times import MIN_STEP_S, NUM_KEPT, StepTimes
from loopwright.core.calls import ForwardText, Sampling
from loopwright.core.ids import PageName, QueueName

from .rig import Rig


def measured(*steps: tuple[int, float]) -> StepTimes:
    times = StepTimes()
    for num_tokens, taken_s in steps:
        times.note(num_tokens, taken_s)
    return times


def test_drafts_cost_what_a_wider_step_takes_longer() -> None:
    times = measured((1, 0.008), (8, 0.016), (40, 0.048))
    assert times.draft_cost(8, 4) == pytest.approx(2.0)
    assert times.draft_cost(1, 7) == pytest.approx(1.0)
    assert times.draft_cost(8, 9) == pytest.approx((0.048 + 40 * 0.001) / 0.016 - 1)  # beyond all that ran


def test_prompts_alone_do_not_say_what_a_narrow_step_takes() -> None:
    times = measured((128, 0.05), (512, 0.3))
    times.note(40, 0.02, 32)
    assert times.draft_cost(8, 4) == pytest.approx(1.2)  # with the one narrow step that there was


def test_where_width_is_free_drafts_are() -> None:
    assert measured((1, 0.01), (2, 0.01), (64, 0.01)).draft_cost(4, 8) == 0.0


def test_a_wider_step_that_happened_to_be_faster_makes_drafts_no_gain() -> None:
    assert measured((1, 0.02), (64, 0.01)).draft_cost(1, 8) == 0.0
    assert measured((1, 0.02), (8, 0.01), (64, 0.03)).draft_cost(8, 7) == pytest.approx(0.5)


def test_nothing_is_told_of_one_size_alone_or_of_steps_that_the_host_takes_most_of() -> None:
    assert measured((8, 1.0), (9, 1.0)).draft_cost(8, 4) is None
    assert measured((1, MIN_STEP_S / 4), (64, MIN_STEP_S / 2)).draft_cost(1, 4) is None
    assert measured((0, 1.0), (1, 1.0)).draft_cost(1, 4) is None


def test_the_last_steps_count_and_one_slow_one_does_not() -> None:
    times = measured(*[(1, 9.0)] * NUM_KEPT, *[(1, 0.01)] * NUM_KEPT, (1, 9.0), *[(8, 0.02)] * NUM_KEPT)
    assert times.draft_cost(1, 7) == pytest.approx(1.0)


def test_a_step_of_drafts_costs_what_such_steps_took_and_not_what_prompts_of_its_size_did() -> None:
    times = measured((1, 0.008), (8, 0.016), (40, 0.032))
    assert times.draft_cost(8, 4) == pytest.approx(1.0)
    times.note(40, 0.064, num_drafts=32)
    assert times.draft_cost(8, 4) == pytest.approx(3.0)
    times.note(8, 0.1, num_drafts=4)
    assert times.draft_cost(8, 0) == pytest.approx(0.1 / 0.016 - 1), "and what is plain is not what drafts took"


@pytest.mark.parametrize(
    ("last_drafts", "waited_s", "cost"),
    [(4, 0.016, 3.0), (2, 0.016, 3.0), (1, 0.016, 2.0), (4, 0.048, 2.0)],
    ids=["the last one was of drafts too", "half of it was", "it was not", "programs did something else"],
)
def test_what_the_engine_waits_for_the_next_guesses_is_part_of_their_cost(
    last_drafts: int, waited_s: float, cost: float
) -> None:
    times = measured((1, 0.008), (8, 0.016), (40, 0.032))
    times.note(4, 0.012, num_drafts=last_drafts)
    times.note(40, 0.048, 32, waited_s)
    assert times.draft_cost(8, 4) == pytest.approx(cost)


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_whoever_has_drafts_judged_is_told_what_they_took(num_drafts: int) -> None:
    rig = Rig()
    for num_tokens, taken_s in ((1, 0.01), (8, 0.045)):
        rig.controller._step_times.note(num_tokens, taken_s)
    run = rig.open("a")
    call = run.submit(
        ForwardText(
            queue=QueueName(1),
            pages=(),
            grow_from=PageName(100),
            kv_len=0,
            tokens=(5, 6, 7),
            positions=(0, 1, 2),
            num_drafts=num_drafts,
            sampling=Sampling(),
        )
    )
    rig.drain()
    assert run.forwarded(call).draft_cost == (pytest.approx(1.0) if num_drafts else None)
