"""How many tokens of prompts a step gets beside rows that decode follows from what steps took."""

import pytest

from loopwright.control.pace import FIRST_ROOM, MIN_ROOM, TILE, Pace


def measured(*steps: tuple[int, int, float]) -> Pace:
    pace = Pace()
    for num_single, num_prompt, taken_s in steps:
        pace.note(num_single, num_prompt, taken_s)
    return pace


def test_prompts_get_what_the_rows_leave_of_the_time_in_whole_tiles() -> None:
    pace = measured((128, 0, 0.006), (128, 1000, 0.026))  # 20 µs a token
    room = pace.room(128, 0.025)
    assert 950 - TILE < room <= 950
    assert (128 + room) % TILE == 0
    assert pace.room(128, 0.05) > 2 * room


def test_a_prompt_alone_tells_what_its_tokens_take() -> None:
    assert measured((0, 32_000, 0.8)).room(1, 0.025) == pytest.approx(0.025 / (0.8 / 32_000), abs=TILE)


def test_medians_count_and_old_steps_do_not() -> None:
    pace = measured((0, 1000, 0.01), (0, 1000, 9.0), (0, 1000, 0.01))
    assert pace.room(1, 0.025) > 2000
    for _ in range(9):
        pace.note(0, 1000, 0.1)
    assert pace.room(1, 0.025) == MIN_ROOM


def test_nothing_known_is_a_cautious_start_and_few_tokens_tell_nothing() -> None:
    assert Pace().room(3, 0.025) == FIRST_ROOM
    assert measured((4, 5, 0.5), (4, 0, 0.01)).room(4, 0.025) == FIRST_ROOM


def test_who_waits_for_a_first_token_comes_forward_even_if_there_is_no_time() -> None:
    assert measured((200, 0, 0.04), (200, 512, 0.06)).room(200, 0.025) == MIN_ROOM


def test_sizes_that_have_not_run_take_what_their_neighbours_do() -> None:
    pace = measured((4, 0, 0.001), (256, 0, 0.02), (0, 1000, 0.01))
    assert abs(pace.room(16, 0.025) - pace.room(256, 0.025)) < TILE  # as the next larger one
    assert pace.room(2, 0.025) > pace.room(16, 0.025)
    assert abs(pace.room(1000, 0.025) - pace.room(256, 0.025)) < TILE  # as the largest that ran
