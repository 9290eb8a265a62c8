"""The public JSON-Schema-Test-Suite: a schema is refused with a pointer, or each of its instances is judged rightly."""

import json
import random
from collections import Counter
from datetime import date
from itertools import product

import pytest
from grammar_rig import assert_valid, walk
from suite_rig import NARROWED, Case, accepts, cases, judge, spellings

from loopwright.core.errors import BadRequest

CASES = cases()
NUM_WALKS = 8
PATTERNS_OF_OTHERS = "optional/ecmascript-regex", "optional/non-bmp-regex", "pattern", "patternProperties"
"""Files with patterns that Python's `re`, which the validator asks, cannot read or reads in another way."""


def test_a_schema_is_refused_with_a_pointer_or_tells_every_valid_instance_from_every_invalid_one() -> None:
    found = [(case, judge(case)) for case in CASES]
    assert [(case.file, case.description, one) for case, verdict in found for one in verdict.wrong] == []
    refused = [verdict for _, verdict in found if verdict.refusal is not None]
    assert all((one.place or "").startswith("grammar.source#") for one in refused)
    counts = Counter(verdict.refusal is None for _, verdict in found)
    assert counts[True] >= 180, counts  # what is enforced by now stays so
    assert sum(verdict.num_agreed for _, verdict in found) >= 870


def test_each_reason_for_narrowing_is_one_of_an_instance() -> None:
    """None stays on the list when the grammars get wider."""
    narrowed = [(case.file, one["description"]) for case in CASES for one in case.instances if one["valid"]]
    told = {(file, words) for file, words in NARROWED if not any(file == at and words in said for at, said in narrowed)}
    assert told == set()
    by_reason = sum((judge(case).narrowed for case in CASES if case.file in {at for at, _ in NARROWED}), Counter())
    assert set(by_reason) == set(NARROWED.values())


def test_every_text_that_is_written_under_a_schema_of_the_suite_validates() -> None:
    """The other way round: not the suite's instances, but the grammar's own."""
    num_finished = 0
    for number, case in enumerate(CASES):
        if case.file in PATTERNS_OF_OTHERS and "\\" in json.dumps(case.schema):
            continue
        try:
            grammar = case.compile()
        except BadRequest:
            continue
        for seed in range(NUM_WALKS):
            text = walk(grammar.start(), random.Random(f"{number} {seed}"), max_tokens=40)
            if text is not None:
                assert_valid(case.schema, text)
                num_finished += 1
    assert num_finished > 700


def test_a_date_is_one_of_the_calendar() -> None:
    grammar = Case("none", "none", {"type": "string", "format": "date"}, ()).compile()
    for year, month, day in product((1900, 2000, 2023, 2024), range(14), range(33)):
        text = f"{year}-{month:02}-{day:02}"
        try:
            is_day = bool(date.fromisoformat(text))
        except ValueError:
            is_day = False
        assert accepts(grammar, f'"{text}"') == is_day, text


@pytest.mark.parametrize(
    ("schema", "data", "valid"),
    [({"type": "integer"}, "x", True), ({"maximum": 5}, 5, False), ({"enum": ["a"]}, "b", True)],
)
def test_a_grammar_that_disagrees_with_the_suite_is_found(schema: object, data: object, valid: bool) -> None:
    case = Case("none", "none", schema, ({"description": "d", "data": data, "valid": valid},))
    assert judge(case).wrong == [f"d: {json.dumps(data)} is {valid}"]


def test_an_instance_is_asked_in_every_order_of_its_keys_and_as_whole_numbers() -> None:
    found = set(spellings({"a": 1.0, "b": {"c": "é", "d": 2}}))
    assert {'{"b": {"d": 2, "c": "é"}, "a": 1}', '{"a": 1.0, "b": {"c": "\\u00e9", "d": 2}}'} <= found
    case = Case("none", "none", {"properties": {"a": {"type": "integer"}, "b": {"type": "object"}}}, ())
    assert accepts(case.compile(), '{"a": 1, "b": {"c": "é", "d": 2}}')
