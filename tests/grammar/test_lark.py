"""Lark grammars and choices: what they accept, and what is refused where."""

import json
import random
import re

import pytest
from grammar_rig import compiled, walk

from loopwright.core.errors import BadRequest
from loopwright.grammar.compile import MAX_CHOICES

ARITHMETIC = """
start: sum
?sum: product | sum ("+" | "-") product   // left-recursive
?product: atom | product "*" atom
atom: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,2}/
"""


def texts(kind, source, num: int = 100, max_tokens: int = 60) -> list[str]:
    grammar = compiled(kind, source)
    walks = [walk(grammar.start(), random.Random(seed), max_tokens) for seed in range(num)]
    return [text.decode() for text in walks if text is not None]


def test_every_finished_text_of_a_grammar_is_in_its_language() -> None:
    found = texts("lark", ARITHMETIC, num=300)
    assert len(found) > 100
    for text in found:
        assert isinstance(eval(re.sub(r"\b0+(?=\d)", "", text)), int), text


def test_a_schema_inside_a_grammar_is_enforced_as_one_outside() -> None:
    source = 'start: "call " body ";"\nbody: %json {"type": "integer", "minimum": 1, "maximum": 3}'
    assert set(texts("lark", source)) == {"call 1;", "call 2;", "call 3;"}


def test_text_that_looks_like_a_directive_or_a_token_is_text_inside_quotes() -> None:
    source = 'start: "<|im_end|>" /[<%]/ "%llguidance" // <[258]> %json'
    assert set(texts("lark", source)) == {"<|im_end|><%llguidance", "<|im_end|>%%llguidance"}


def test_white_space_that_a_grammar_ignores_may_come_between() -> None:
    found = texts("lark", '%ignore / /\nstart: "a" "b"', max_tokens=8)
    assert {text.replace(" ", "") for text in found} == {"ab"}
    assert "a b" in found


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "there is no grammar"),
        ("start:", "no text but the empty one"),
        ("start: start", "cannot go on"),
        ('start: start "a"', "cannot go on"),
        ('start: a\na: b "x"\nb: a "y"', "cannot go on"),
        ("start: (", "Expected token"),
        ("start: nothing", "unknown name"),
        ('rule: "a"', "start"),
        ("start: /(/", "invalid regex"),
        ("start: /(?=a)b/", "invalid regex"),
        ("start: A\nA: B\nB: A", "circular"),
        ('root ::= "a"', "Expected token"),
        ("start: <|im_end|>", "line 1: <|im_end|>: tokens cannot be named"),
        ('start: "a"\n  | <[258]>', "line 2: <[258]>: tokens cannot be named"),
        ("start: <[*]>", "tokens cannot be named"),
        ('start: a\na[temperature=0.5]: "x"', "line 2: [temperature=0.5]: of rule options only lazy is known"),
        ('start: a\na[max_tokens=5]: "x"', "of rule options"),
        ('start: a\n a [stop=""] : "x"', "of rule options"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "line 1: %llguidance is not known"),
        ('%declare A\nstart: "a"', "%declare is not known"),
        ('start: %json {"type": "strin"}', "line 1: JSON schema at #/type"),
        ("start: %json nothing", "%json without a schema"),
        ('start: A\nA.2: "x"', "priority"),
        ("start: @other", "unknown grammar"),
        ("start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(1000)), "1001 rules; at most 1000"),
        ("start: A0\n" + "\n".join(f"A{n}: A{n + 1} A{n + 1}" for n in range(30)) + '\nA30: "a"', "too big"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused_with_its_place(source: str, words: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(words)) as caught:
        compiled("lark", source)
    assert caught.value.field == "grammar.source"
    assert "\n" not in caught.value.message


def test_a_choice_is_one_of_its_texts_also_where_one_begins_another() -> None:
    options = ["yes", "no", "not at all", 'a "/b\\', "ünï"]
    assert set(texts("choice", options)) == set(options)


@pytest.mark.parametrize(
    "source", ["", "yes", "[]", '[""]', '["a", 3]', '{"a": 1}', "[" * 3000, json.dumps(["x"] * 5000)]
)
def test_choices_that_are_none_are_refused(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        compiled("choice", source)
    assert caught.value.field == "grammar.source"


def test_any_object_takes_no_source() -> None:
    with pytest.raises(BadRequest, match="takes no source"):
        compiled("json_object", "{}")


def test_as_many_choices_as_may_be_can_be_followed() -> None:
    options = [str(number) * 8 for number in range(MAX_CHOICES)]
    for seed in range(4):
        assert (walk(compiled("choice", options).start(), random.Random(seed)) or b"").decode() in options
