"""How many tokens of prompts a step gets beside rows that decode follows from what steps took."""

from collections.abc import Callable

from loopwright.control.pace import FIRST_ROOM, MAX_AGE, MAX_DOUBT, MIN_ROOM, NUM_KEPT, TILE, Pace

LIMIT_S = 0.02


def measured(*steps: tuple[int, int, float]) -> Pace:
    pace = Pace()
    for num_single, num_prompt, taken_s in steps:
        pace.note(num_single, num_prompt, taken_s)
    return pace


def after(pace: Pace, num_single: int, taken_s: Callable[[int], float], num_steps: int = 40) -> list[int]:
    """The rooms of steps that take what is asked for, and `taken_s` seconds by their tokens in all."""
    rooms = []
    for _ in range(num_steps):
        rooms.append(pace.room(num_single, LIMIT_S))
        pace.note(num_single, rooms[-1], taken_s(num_single + rooms[-1]))
    return rooms


def test_a_step_is_filled_with_whole_tiles_up_to_the_limit_and_hardly_ever_beyond() -> None:
    rooms = after(Pace(), 30, lambda num_tokens: 0.004 + 24e-6 * num_tokens)
    assert rooms[-1] == 5 * TILE - 30, "640 tokens take 19.4 ms, and 768 take 22.4"
    late = rooms[10:]
    assert set(late) <= {5 * TILE - 30, 6 * TILE - 30}
    assert late.count(6 * TILE - 30) <= 1 + len(late) // MAX_DOUBT


def test_a_step_that_takes_what_its_launches_take_gets_as_many_tokens_as_are_free() -> None:
    """By its first 256 tokens one takes 58 µs, so that 256 would be all that ever fit."""
    pace = measured((30, MIN_ROOM, 0.015))
    rooms = after(pace, 30, lambda num_tokens: max(0.015, 24e-6 * num_tokens))
    assert max(rooms[:6]) >= 4 * TILE
    assert sorted(rooms)[len(rooms) // 2] == 6 * TILE - 30


def test_where_launches_alone_take_longer_than_the_limit_prompts_get_what_is_free() -> None:
    rooms = after(Pace(), 30, lambda num_tokens: max(0.028, 24e-6 * num_tokens))
    assert 1100 < sorted(rooms)[len(rooms) // 2] <= 1300


def test_a_least_size_that_something_held_up_raises_no_limit() -> None:
    pace = measured((30, MIN_ROOM, 0.07), (30, 610, 0.016))
    assert pace.room(30, LIMIT_S) <= 6 * TILE - 30


def test_a_small_model_is_soon_given_all_that_fits() -> None:
    rooms = after(Pace(), 30, lambda num_tokens: 0.002 + 4e-6 * num_tokens)
    assert 4000 < rooms[8] <= 4500


def test_prompts_alone_tell_what_larger_steps_take() -> None:
    pace = measured((0, 16_384, 0.39), (30, 512, 0.013))
    assert pace.room(30, LIMIT_S) == 7 * TILE - 30, "between the two, a tile takes 3 ms"


def test_a_step_that_something_held_up_is_tried_again() -> None:
    pace = measured((30, 512, 0.5))
    assert pace.room(30, LIMIT_S) == MIN_ROOM
    rooms = after(pace, 30, lambda num_tokens: 24e-6 * num_tokens, 2 * MAX_DOUBT)
    assert rooms[0] == MIN_ROOM
    assert max(rooms[:MAX_DOUBT]) < 5 * TILE - 30, "up to there, and no further for a while"
    assert sorted(rooms[MAX_DOUBT + 2 :])[5] == 6 * TILE - 30


def test_medians_count_so_one_slow_step_of_a_known_size_changes_nothing() -> None:
    pace = measured((28, 612, 0.019), (28, 612, 0.019), (28, 740, 0.022), (28, 612, 0.5))
    assert pace.room(28, LIMIT_S) == 612
    for _ in range(NUM_KEPT):
        pace.note(28, 612, 0.021)
    assert pace.room(28, LIMIT_S) < 612


def test_what_is_long_ago_is_forgotten() -> None:
    pace = measured((28, 612, 0.019))
    for _ in range(MAX_AGE):
        pace.note(28, 484, 0.021)
    assert pace.room(28, LIMIT_S) > 612
    pace.note(28, 484, 0.021)
    assert pace.room(28, LIMIT_S) == 3 * TILE - 28


def test_nothing_known_is_a_cautious_start_and_few_tokens_tell_nothing() -> None:
    assert Pace().room(3, LIMIT_S) == FIRST_ROOM
    assert measured((4, 5, 0.5), (4, 0, 0.01)).room(4, LIMIT_S) == FIRST_ROOM


def test_who_waits_for_a_first_token_comes_forward_even_if_there_is_no_time() -> None:
    assert measured((200, 512, 0.06)).room(200, LIMIT_S) == MIN_ROOM
    assert measured((200, 512, 0.06), (200, 56, 0.04)).room(200, LIMIT_S) == MIN_ROOM


def test_a_step_of_no_measurable_time_harms_nothing() -> None:
    assert measured((3, 512, 0.0)).room(3, LIMIT_S) == 10 * TILE - 3, "at most twice as much"


def edged(num_tokens: int) -> float:
    """A small model's: up to 1,024 tokens are a graph, and beyond a step takes what its launches take."""
    return 0.001 + 5e-6 * num_tokens if num_tokens <= 1024 else max(0.033, 5e-6 * num_tokens)


def test_prompts_stay_below_the_edge_where_launches_begin_and_look_beyond_it_less_and_less() -> None:
    pace = Pace()
    rooms = after(pace, 30, edged, 100)
    assert sorted(rooms)[len(rooms) // 2] > 5 * TILE
    num_beyond = [sum(30 + room > 1024 for room in part) for part in (rooms[10:55], rooms[55:])]
    assert sum(num_beyond) <= 4
    assert num_beyond[1] <= num_beyond[0]


def test_a_size_that_fits_the_limit_and_wastes_it_is_not_taken() -> None:
    assert measured((30, 994, 0.006), (30, 1122, 0.018)).room(30, LIMIT_S) == 8 * TILE - 30
    assert measured((30, 994, 0.006), (30, 1378, 0.018)).room(30, LIMIT_S) == 9 * TILE - 30, "one more may fit"
    assert measured((30, 994, 0.006), (30, 1250, 0.0085)).room(30, LIMIT_S) > 10 * TILE - 30


def test_what_takes_too_long_again_and_again_is_tried_more_seldom() -> None:
    pace = measured(*[(30, 994, 0.019)] * 2)
    for num_times in range(1, 4):
        pace.note(30, 1122, 0.024)
        for _ in range(MAX_DOUBT * 2 ** (num_times - 1)):
            assert pace.room(30, LIMIT_S) == 8 * TILE - 30
            pace.note(30, 994, 0.019)


def test_a_smaller_size_than_what_prompts_get_anyway_says_nothing_about_waste() -> None:
    assert measured((0, 128, 0.001), (30, 482, 0.018)).room(30, LIMIT_S) == 4 * TILE - 30
