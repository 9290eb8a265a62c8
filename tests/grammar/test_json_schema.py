"""What of JSON Schema is enforced, what is refused, and where the refusal points."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from grammar_rig import assert_valid, compiled, is_accepted, walk
from jsonschema import ValidationError
from schemas import ENFORCED, REFUSED

from loopwright.core.errors import BadRequest
from loopwright.core.grammars import Grammar
from loopwright.grammar import json_schema, schema_values
from loopwright.grammar.pool import GrammarPool
from loopwright.text.byte_tokenizer import byte_tokenizer


@pytest.mark.parametrize(("schema", "pointer"), REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused_with_a_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(BadRequest) as caught:
        compiled("json_schema", schema)
    assert caught.value.field == f"grammar.source#{pointer}"
    assert caught.value.field == f"grammar.source#{pointer}"
    assert f"at #{pointer}:" in caught.value.message
    assert "\n" not in caught.value.message


def test_the_two_hundred_schemas_use_every_keyword_that_is_enforced() -> None:
    text = json.dumps(ENFORCED)
    missing = [one for one in (*json_schema.ENFORCED, *schema_values.FORMATS) if json.dumps(one) not in text]
    assert missing == []
    assert len(ENFORCED) + len(REFUSED) >= 200


def test_a_keyword_is_enforced_or_an_annotation_or_refused() -> None:
    assert json_schema.ENFORCED.isdisjoint(json_schema.ANNOTATIONS)
    for keyword in json_schema.ANNOTATIONS:
        compiled("json_schema", {"type": "null", keyword: {"anything": 1}})


def test_integers_stay_within_their_bounds() -> None:
    grammar = compiled("json_schema", {"type": "integer", "minimum": 1, "maximum": 5})
    assert {walk(grammar.start(), random.Random(seed)) for seed in range(100)} == {b"1", b"2", b"3", b"4", b"5"}


def test_properties_that_are_not_listed_never_come() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": False}
    texts = {walk(compiled("json_schema", schema).start(), random.Random(seed)) for seed in range(100)}
    assert texts == {b"{}", b'{"a": 1}', b'{"b": 2}', b'{"a": 1, "b": 2}'}


def test_an_enum_gives_its_members_and_nothing_else() -> None:
    texts = {walk(compiled("json_schema", {"enum": ["x", 7, None]}).start(), random.Random(seed)) for seed in range(60)}
    assert texts == {b'"x"', b"7", b"null"}


@pytest.mark.parametrize("text", ['{"\\u0061": 2}', '{"a": 1, "a": 2}', '{"a": 2}', '{"b": 1}'])
def test_no_way_of_writing_a_name_gets_around_the_schema_of_the_property(text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}}
    assert not is_accepted("json_schema", schema, text)
    assert is_accepted("json_schema", schema, '{"a": 1, "b": 2}')


def test_json_is_written_as_json_dumps_writes_it() -> None:
    value = {"a": [1, {"b": "c"}], "d": {}}
    assert walk(compiled("json_schema", {"const": value}).start(), random.Random(0)) == json.dumps(value).encode()


def test_the_validator_of_these_tests_can_fail() -> None:
    with pytest.raises(ValidationError):
        assert_valid({"type": "integer", "maximum": 5}, b"6")


def chain(length: int) -> dict[str, Any]:
    """A schema that refers to one that refers to one …"""
    links = {f"s{n}": {"type": "array", "items": {"$ref": f"#/$defs/s{n + 1}"}, "minItems": 1} for n in range(length)}
    return {"$ref": "#/$defs/s0", "$defs": dict(reversed([*links.items(), (f"s{length}", {"type": "null"})]))}


def test_chains_of_references_end_neither_the_process_nor_its_patience() -> None:
    """llguidance recurses along them; the pool's thread has the stack that the longest allowed one needs."""
    pool = GrammarPool(byte_tokenizer(), 260)
    longest = pool.compile(Grammar("json_schema", json.dumps(chain(1990)))).result().start()
    assert bytes(longest.forced()[:4]) == b"[[[["
    with pytest.raises(BadRequest, match="4004 deep together; at most 4000"):
        pool.compile(Grammar("json_schema", json.dumps(chain(2000)))).result()
    pool.close()


def test_a_schema_of_any_size_is_read_or_refused_in_bounded_time() -> None:
    forwards = chain(100)
    forwards["$defs"] = dict(reversed(forwards["$defs"].items()))
    with pytest.raises(BadRequest, match="lead on to references more than 64 times"):
        compiled("json_schema", forwards)
    wide = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(400)}}
    assert compiled("json_schema", wide)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "lark", "choice"])
def test_a_source_beyond_the_limit_is_refused_with_both_numbers(kind: Any) -> None:
    with pytest.raises(BadRequest, match="262145 bytes; the limit is 262144"):
        compiled(kind, "x" * (256 * 1024 + 1))


def test_the_guide_lists_what_is_enforced_and_what_is_passed_over() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "grammars.md").read_text()
    section = guide.split("## JSON schemas")[1].split("\n## ")[0]
    enforced, formats = section.split("`format` may be", 1)
    listed = set(re.findall(r"`([$\w]+)`", enforced.split("Enforced are:")[1]))
    assert listed == json_schema.ENFORCED
    formats, annotations = formats.split("the spelling is enforced")
    assert set(re.findall(r"`([\w-]+)`", formats)) == schema_values.FORMATS
    assert set(re.findall(r"`([$\w]+)`", annotations.split("say nothing about a text")[0])) == json_schema.ANNOTATIONS
