"""Stop strings: the automaton against a scan that anyone can read. Never touches a tokenizer."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.errors import BadRequest
from loopwright.text.stop import MAX_STOP_BYTES, StopMatch, StopMatcher

ALPHABET = st.sampled_from("abé🙂")
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), max_size=5)


def reference(stops: list[str], text: bytes) -> StopMatch | None:
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop.encode())]
        if complete:
            longest = max(complete, key=lambda stop: len(stop.encode()))
            return StopMatch(longest, end - len(longest.encode()))
    return None


def split(text: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


@given(STOPS, st.text(ALPHABET, max_size=40), st.lists(st.integers(0, 200), max_size=12))
def test_the_match_is_the_reference_s_however_the_text_is_split(stops, text, cuts):
    matcher = StopMatcher(stops)
    found = [match for part in split(text.encode(), cuts) if (match := matcher.push(part))]

    expected = reference(stops, text.encode())
    assert found == [expected] * len(found)
    assert bool(found) == (expected is not None)


@given(STOPS, st.text(ALPHABET, max_size=40), st.lists(st.integers(0, 200), max_size=12))
def test_held_is_the_longest_suffix_that_is_a_proper_prefix_of_a_stop(stops, text, cuts):
    matcher = StopMatcher(stops)
    pushed = b""
    for part in split(text.encode(), cuts):
        pushed += part
        if matcher.push(part):
            assert matcher.num_held == 0
            return
        prefixes = {stop.encode()[:size] for stop in stops for size in range(len(stop.encode()))}
        assert matcher.num_held == max((len(prefix) for prefix in prefixes if pushed.endswith(prefix)), default=0)


def test_a_stop_that_repeats_itself_is_found_after_several_false_starts():
    # After "aabaaa" comes no "c": what remains is "aa", the fallback of a fallback.
    assert StopMatcher(["aabaaac"]).push(b"aabaaabaaac") == StopMatch("aabaaac", 4)


def test_the_first_stop_to_be_complete_wins_over_one_that_started_earlier():
    assert StopMatcher(["abcd", "bc"]).push(b"abcd") == StopMatch("bc", 1)


def test_of_stops_complete_at_one_byte_the_longest_wins():
    assert StopMatcher(["c", "abc", "bc"]).push(b"xabc") == StopMatch("abc", 1)


def test_what_comes_after_a_match_changes_nothing():
    matcher = StopMatcher(["b", "a"])
    assert matcher.push(b"xb") == StopMatch("b", 1)
    assert matcher.push(b"a") == StopMatch("b", 1)


def test_without_stops_nothing_matches_and_nothing_is_held():
    matcher = StopMatcher([])
    assert matcher.push(b"anything") is None
    assert matcher.num_held == 0


@pytest.mark.parametrize("stops", [["a", ""], ["\ud800"], ["a" * MAX_STOP_BYTES, "b"]])
def test_a_stop_that_cannot_be_honoured_is_a_bad_request_that_names_the_field(stops):
    with pytest.raises(BadRequest) as caught:
        StopMatcher(stops)
    assert caught.value.field == "stop"


def test_stops_of_exactly_the_limit_are_taken():
    stop = "a" * MAX_STOP_BYTES
    assert StopMatcher([stop]).push(stop.encode()) == StopMatch(stop, 0)
