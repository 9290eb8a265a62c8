"""The dialect of regular expressions: what is read, and what is refused at which character."""

import re

import pytest
from grammar_rig import compiled, is_accepted

from loopwright.core.errors import BadRequest
from loopwright.grammar.pattern import search_pattern, whole_pattern


@pytest.mark.parametrize(
    ("pattern", "character", "words"),
    [
        ("foo**", 4, "follows another quantifier"),
        ("^hello\\!$", 6, "no escape; write '!' by itself"),
        ("a{2}{3}", 4, "follows another quantifier"),
        ("a++", 2, "follows another quantifier"),
        ("*a", 0, "nothing before '*'"),
        ("a|+", 2, "nothing before '+'"),
        ("a{,3}", 1, "nothing before '{'"),
        ("a{3,1}", 1, "must rise"),
        ("a{1,99999}", 1, "end at 65535"),
        ("a{" + "9" * 5000 + ",5}", 1, "end at 65535"),
        ("a{\u0663}", 1, "nothing before '{'"),
        ("(a", 0, "never closed"),
        ("a)", 1, "closes no group"),
        ("[a", 0, "never closed"),
        ("[]", 0, "empty class"),
        ("[]a]", 0, "empty class"),
        ("[z-a]", 1, "is empty"),
        ("[\\d-z]", 1, "a range goes from one character"),
        ("[[:alpha:]]", 1, "must be escaped"),
        ("a$b", 1, "only stand at the end"),
        ("a^b", 1, "only stand at the start"),
        ("(^a)", 1, "only stand at the start"),
        ("(a$)", 2, "inside a group"),
        ("(?=a)", 0, "looking around"),
        ("(?<!a)b", 0, "looking around"),
        ("(?P<n>a)", 0, "only '(?:'"),
        ("(?i)a", 0, "only '(?:'"),
        ("\\bword", 0, "not supported"),
        ("(a)\\1", 3, "not supported"),
        ("\\Aa", 0, "not supported"),
        ("a\\", 1, "in the middle of an escape"),
        ("\\ud83d", 0, "no character"),
        ("\\u{110000}", 0, "no character"),
        ("(" * 70 + ")" * 70, 64, "nested deeper than 64"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(pattern: str, character: int, words: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(words)) as caught:
        search_pattern(pattern)
    assert f"character {character}:" in caught.value.message
    with pytest.raises(BadRequest) as refused:
        compiled("regex", pattern)
    assert refused.value.field == "grammar.source"


def test_a_search_may_start_and_end_anywhere_and_each_alternative_has_its_own_anchors() -> None:
    assert search_pattern("^a|b$") == "^(?:a(?s:.*)|(?s:.*)b)$"
    assert whole_pattern("^a|b$") == "(?:a|b)"


@pytest.mark.parametrize(
    ("pattern", "never"),
    [
        ("^\\s$", "\x1c\x85\ufeff"),  # white space for Python, Rust or ECMA-262, but not for all
        ("^\\S$", " \x1c\x85\ufeff"),
        ("^[^\\s]$", "\x1c\x85\ufeff"),
        ("^[\\s\\S]$", "\x1c\x85\ufeff"),
        ("^\\d$", "٣"),
        ("^\\D$", "3٣"),
        ("^[^\\d]$", "3٣"),
        ("^\\w$", "éß"),
        ("^\\W$", "aé²"),
        ("^.$", "\n\r\u2028"),
    ],
)
def test_characters_that_engines_read_differently_are_never_written(pattern: str, never: str) -> None:
    for character in never:
        assert not is_accepted("regex", pattern, character), repr(character)
    for character in "aé3 \t-":
        if re.fullmatch(pattern, character, re.ASCII) and re.fullmatch(pattern, character):
            assert is_accepted("regex", pattern, character), repr(character)
