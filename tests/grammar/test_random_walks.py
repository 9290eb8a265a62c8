"""Ten thousand texts written at random, byte by byte, with no model: each that is finished parses and validates."""

import json
import random
import re

import pytest
from grammar_rig import assert_valid, compiled, walk
from schemas import ENFORCED, PATTERNS

NUM_WALKS = 10_000
_EACH = -(-NUM_WALKS // len(ENFORCED))


@pytest.mark.parametrize("number", range(len(ENFORCED)))
def test_every_finished_walk_of_a_schema_validates(number: int) -> None:
    schema = ENFORCED[number]
    grammar = compiled("json_schema", schema)
    texts = [walk(grammar.start(), random.Random(seed)) for seed in range(_EACH)]
    finished = [text for text in texts if text is not None]
    assert finished, "no walk was finished"
    for text in finished:
        assert_valid(schema, text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_finished_walk_of_a_pattern_matches_as_a_whole(pattern: str) -> None:
    grammar = compiled("regex", pattern)
    texts = [walk(grammar.start(), random.Random(seed), max_tokens=30) for seed in range(20)]
    assert any(texts)
    for text in filter(None, texts):
        assert re.fullmatch(pattern, text.decode(), re.DOTALL if pattern == "b" else 0), (pattern, text)


def test_every_finished_walk_of_any_object_is_an_object() -> None:
    grammar = compiled("json_object")
    texts = [walk(grammar.start(), random.Random(seed)) for seed in range(100)]
    finished = [text for text in texts if text is not None]
    assert len(finished) > 50
    assert all(isinstance(json.loads(text.decode()), dict) for text in finished)
