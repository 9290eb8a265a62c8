"""Each family's way to write calls, held: every text that a grammar of it lets through is read back, by the reader that
clients get, as calls of tools that there are with arguments that fit, or as text."""

import json
import random
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import pytest
from grammar_rig import compiled, is_accepted, walk

from loopwright.core.errors import BadRequest
from loopwright.grammar.vocabulary import Vocabulary
from loopwright.sdk.call_object import Fault, FoundCall
from loopwright.sdk.tool_formats import OPENINGS, READERS, reader_of
from loopwright.text.byte_tokenizer import byte_tokenizer

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


ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"note": {"type": "string", "maxLength": 60}, "tags": {"type": "array", "maxItems": 2}},
    "required": ["note"],
    "additionalProperties": False,
}
JSON_ANSWER = {"kind": "json_schema", "source": json.dumps(ANSWER)}


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("format", [one for one in READERS if one != "llama3_json"])
def test_beside_an_answer_that_is_held_a_turn_is_calls_that_fit_or_an_answer_that_does(
    format: str, parallel: bool
) -> None:
    source = {"format": format, "tools": TOOLS, "choice": "auto", "parallel": parallel, "answer": JSON_ANSWER}
    grammar = compiled("tool_calls", source)
    texts = [walk(grammar.start(), random.Random(seed), max_tokens=300) for seed in range(50)]
    nums = {"calls": 0, "answers": 0}
    for text in (text.decode() for text in texts if text is not None):
        reader = reader_of(format, is_answer_held=True)
        found = [*reader.push(text), *reader.finish()]
        calls = [one for one in found if isinstance(one, FoundCall)]
        for call in calls:
            jsonschema.validate(call.arguments, SCHEMAS[call.name])
        prose = "".join(one for one in found if isinstance(one, str))
        if not calls:
            assert prose == text
            jsonschema.validate(json.loads(text), ANSWER)
        else:
            assert not prose.strip()
        assert not [one for one in found if isinstance(one, Fault)]
        nums["calls" if calls else "answers"] += 1
    assert min(nums.values()) > 3, nums
    for nasty in ("<tool_call>", "[TOOL_CALLS]noon[ARGS]{}", "```json", "[noon()]"):
        assert is_accepted("tool_calls", source, json.dumps({"note": nasty}))
    required = {**source, "choice": "required"}
    assert not is_accepted("tool_calls", required, '{"note": "x"}')
    assert is_accepted("tool_calls", {**source, "choice": "none"}, '{"note": "x"}')


def is_accepted_beginning(kind: Any, source: str, text: str) -> bool:
    return bool(compiled(kind, source).start().take(text.encode()))


@pytest.mark.parametrize("kind", ["regex", "choice", "lark", "json_object", "json_schema"])
@pytest.mark.parametrize("format", READERS)
def test_an_answer_that_could_be_taken_for_a_call_is_refused(format: str, kind: str) -> None:
    named = {"type": "object", "properties": {"name": {}}, "required": ["name"], "additionalProperties": False}
    sources: dict[str, list[tuple[str, str]]] = {  # each with a text of it
        "regex": [(r"<b>(.|\n)*", "<b>"), (r"[\[{`](.|\n)*", "{}"), (r"\d+", "3")],
        "choice": [(json.dumps([one]), one) for one in ("<tool_call>x", '{"name": 3', "[noon", "`", "yes")],
        "lark": [('start: "[" /[a-z]+/', "[noon"), ("start: /[0-9]+/", "3")],
        "json_object": [("", '{"name": 1}')],
        "json_schema": [
            (json.dumps(named), '{"name": 1}'),
            (json.dumps({"type": "array", "items": named}), '[{"name": 1}]'),
            (json.dumps({"type": "integer"}), "3"),
        ],
    }
    for written, text in sources[kind]:
        source = {"format": format, "tools": TOOLS, "answer": {"kind": kind, "source": written}}
        if any(is_accepted_beginning(kind, written, one) for one in OPENINGS[format]):
            with pytest.raises(BadRequest, match="so do the calls of this model") as caught:
                compiled("tool_calls", source)
            assert caught.value.field == "grammar.source"
        else:
            assert is_accepted("tool_calls", source, text)
        compiled("tool_calls", {**source, "choice": "required"})  # where there is no answer


def test_an_answer_that_cannot_be_held_is_refused_whatever_the_choice() -> None:
    for choice in ("auto", "required", "none"):
        answer = {"kind": "json_schema", "source": json.dumps({"properties": {"a": {"contains": {}}}})}
        with pytest.raises(BadRequest) as caught:
            compiled("tool_calls", {"format": "hermes", "tools": TOOLS, "choice": choice, "answer": answer})
        assert caught.value.field == "grammar.source#/properties/a/contains"
    with pytest.raises(BadRequest, match="another kind"):
        compiled("tool_calls", {"format": "hermes", "tools": TOOLS, "answer": {"kind": "tool_calls"}})


CALLS, CALL_ID, ARGS = 260, 261, 262


@cache
def marked_vocabulary() -> Vocabulary:
    """Bytes, and the control tokens of Mistral's calls."""
    plain = byte_tokenizer()
    marks = {"[TOOL_CALLS]": CALLS, "[CALL_ID]": CALL_ID, "[ARGS]": ARGS}
    tokenizer = replace(plain, token_bytes=(*plain.token_bytes, b"", b"", b""), controls={**plain.controls, **marks})
    return Vocabulary(tokenizer, tokenizer.vocab_size)


def ids(*parts: str | int) -> list[int]:
    return [one for part in parts for one in ([part] if isinstance(part, int) else part.encode())]


RATED = '{"stars": 3, "more": []}'
LISTED = '[{"name": "noon", "arguments": {}}]'


@pytest.mark.parametrize(
    ("format", "choice", "text", "is_held"),
    [
        ("mistral_args", "auto", ids("I look. ", CALLS, "rate", ARGS, RATED, CALLS, "noon", ARGS, "{}"), True),
        ("mistral_args", "auto", ids(CALLS, "rate", CALL_ID, "abcABC123", ARGS, RATED), True),
        ("mistral_args", "auto", ids("text"), True),
        ("mistral_args", "auto", ids(CALLS, "other", ARGS, "{}"), False),
        ("mistral_args", "auto", ids(CALLS, "rate", ARGS, "{}"), False),
        ("mistral_args", "auto", ids("I ", ARGS), False),
        ("mistral_args", "auto", ids("I [TOOL_CALLS]noon[ARGS]{}"), False),  # in letters
        ("mistral_args", "auto", ids(CALLS, "noon", ARGS, "{}", " text"), False),
        ("mistral_args", "required", ids(CALLS, "noon", ARGS, "{}"), True),
        ("mistral_args", "required", ids("I ", CALLS, "noon", ARGS, "{}"), False),
        ("mistral_args", "none", ids("I ", CALLS), False),
        ("mistral", "auto", ids(CALLS, LISTED), True),
        ("mistral", "auto", ids(LISTED), False),
        ("mistral", "required", ids(CALLS, LISTED), True),
        ("mistral", "none", ids(CALLS), False),
        ("hermes", "auto", ids(CALLS), False),
    ],
)
def test_control_tokens_of_a_format_stand_where_it_has_them_and_nowhere_else(
    format: str, choice: str, text: list[int], is_held: bool
) -> None:
    source = {"format": format, "tools": TOOLS, "choice": choice}
    assert is_accepted("tool_calls", source, text, marked_vocabulary()) == is_held


@pytest.mark.parametrize(
    ("kind", "source"), [("regex", r"(.|\n)*"), ("json_object", ""), ("lark", "start: /(.|\\n)*/")]
)
def test_no_other_grammar_lets_a_control_token_of_calls_through(kind: Any, source: str) -> None:
    state = compiled(kind, source, marked_vocabulary()).start()
    bits = int.from_bytes(state.allowed_bits([259]), "little")
    assert not bits >> CALLS & 7
