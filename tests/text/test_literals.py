"""Strings out of a fixed set are found at each place, the longest one first."""

import re

from hypothesis import given
from hypothesis import strategies as st

from loopwright.text.literals import one_of

LETTERS = st.sampled_from("ab|(")


@given(texts=st.sets(st.text(LETTERS, min_size=1, max_size=5), max_size=8), text=st.text(LETTERS, max_size=20))
def test_a_text_is_split_as_by_trying_all_from_the_longest_on(texts, text):
    longest_first = sorted(texts, key=len, reverse=True)
    naive = "(" + "|".join(map(re.escape, longest_first)) + ")" if texts else "(?!)"
    assert one_of(texts).split(text) == re.split(naive, text)


def test_a_run_of_one_character_is_taken_in_the_longest_pieces():
    runs = one_of("\n" * size for size in range(1, 32))
    assert [len(run) for run in runs.findall("\n" * 70)] == [31, 31, 8]


def test_nothing_is_found_of_nothing():
    assert one_of([]).split("abc") == ["abc"]


def test_long_strings_and_many_that_begin_each_other_are_found_too():
    texts = ["x" * 3000, *("ab" * size for size in range(1, 900))]
    pattern = one_of(texts)
    assert pattern.findall("x" * 3000 + "x" + "ab" * 1000) == ["x" * 3000, "ab" * 899, "ab" * 101]


def test_an_empty_string_stands_nowhere():
    assert one_of(["", "a"]).split("bab") == ["b", "a", "b"]
    assert one_of([""]).split("bab") == ["bab"]
