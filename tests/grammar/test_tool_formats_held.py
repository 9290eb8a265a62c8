"""Each family's way to write calls, held: every text that a grammar of it lets through is read back, by the reader that
clients get, as calls of tools that there are with arguments that fit, or as text."""

import json
import random
from typing import Any

import jsonschema
import pytest
from grammar_rig import compiled, walk

from loopwright.core.errors import BadRequest
from loopwright.sdk.call_object import Fault, FoundCall
from loopwright.sdk.tool_formats import READERS, reader_of

RATE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "is_new": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 4},
        "more": {"type": "array", "items": {"enum": [None, True, "}])"]}, "maxItems": 2},
    },
    "required": ["stars", "more"],
    "additionalProperties": False,
}
NOON: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"rate": RATE, "noon": NOON}
TOOLS = [{"name": name, "parameters": schema} for name, schema in SCHEMAS.items()]


def turns(format: str, choice: str, parallel: bool, num_walks: int = 60) -> list[str]:
    grammar = compiled("tool_calls", {"format": format, "tools": TOOLS, "choice": choice, "parallel": parallel})
    texts = [walk(grammar.start(), random.Random(seed), max_tokens=300) for seed in range(num_walks)]
    return [text.decode() for text in texts if text is not None]


def read(format: str, text: str) -> list[Any]:
    reader = reader_of(format)
    return [*reader.push(text), *reader.finish()]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("format", READERS)
def test_turns_that_must_call_are_calls_that_fit(format: str, parallel: bool) -> None:
    texts = turns(format, "required", parallel)
    assert len(texts) > 5
    nums = set()
    for text in texts:
        found = read(format, text)
        assert not [one for one in found if isinstance(one, Fault)], text
        assert not "".join(one for one in found if isinstance(one, str)).strip(), text
        calls = [one for one in found if isinstance(one, FoundCall)]
        nums.add(len(calls))
        for call in calls:
            jsonschema.validate(call.arguments, SCHEMAS[call.name])
    assert min(nums) == 1
    assert (max(nums) > 1) == parallel


@pytest.mark.parametrize("format", READERS)
def test_turns_that_must_not_call_are_text(format: str) -> None:
    for text in turns(format, "none", True):
        found = read(format, text)
        assert "".join(one for one in found if isinstance(one, str)) == text


@pytest.mark.parametrize("format", READERS)
def test_a_tool_that_is_not_strict_is_held_to_its_name_where_its_schema_cannot_be(format: str) -> None:
    odd = {
        "type": "object",
        "properties": {"x": {"contains": {}}, "y": {"type": "string"}},
        "patternProperties": {"(": {}},
    }
    tool = {"name": "odd", "parameters": odd, "strict": True}
    source = {"format": format, "tools": [tool], "choice": "required", "parallel": False}
    with pytest.raises(BadRequest) as caught:
        compiled("tool_calls", source)
    assert caught.value.field.startswith("tools.odd.parameters#/")
    grammar = compiled("tool_calls", {**source, "tools": [{**tool, "strict": False}]})
    texts = [walk(grammar.start(), random.Random(seed), max_tokens=200) for seed in range(20)]
    found = [one for text in texts if text is not None for one in read(format, text.decode())]
    assert {one.name for one in found if isinstance(one, FoundCall)} == {"odd"}
    assert not [one for one in found if isinstance(one, Fault)]


def test_calls_written_as_python_take_arguments_in_order_with_what_is_not_required_left_out() -> None:
    texts = turns("pythonic", "required", False, 200)
    assert {text[: text.index("(") + 1] for text in texts} == {"[rate(", "[noon("}
    rated = [
        one for text in texts for one in read("pythonic", text) if isinstance(one, FoundCall) and one.name == "rate"
    ]
    assert {tuple(one.arguments) for one in rated} == {
        ("stars", "more"), ("stars", "is_new", "more"), ("stars", "note", "more"), ("stars", "is_new", "note", "more"),
    }  # fmt: skip
    assert json.dumps([one.arguments for one in rated])


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"minProperties": 1}, "minProperties"),
        ({"properties": {"a b": {}}}, "properties/a b"),
        ({"required": ["z"]}, "required"),
        ({"additionalProperties": {"type": "string"}}, "additionalProperties"),
    ],
)
def test_what_python_cannot_be_held_to_is_refused(more: dict[str, Any], pointer: str) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, **more}}
    with pytest.raises(BadRequest) as caught:
        compiled("tool_calls", {"format": "pythonic", "tools": [tool]})
    assert caught.value.field.startswith(f"tools.f.parameters#/{pointer}")
