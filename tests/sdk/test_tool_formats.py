"""Readers of tool calls: random turns cut into random pieces equal a reader of the whole text; what ends in the middle
is a cut call, and tags, braces and quotes inside strings end nothing."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.sdk.call_object import ArgumentsText, CallBegun, Fault, Found, FoundCall
from loopwright.sdk.tool_formats import HermesReader, Llama3JsonReader, reader_of

NASTY = ["</tool_call>", "<tool_call>", '"', "\\", "{", "}", "[", "]", "\n", "é", "😀", "a", " ", ";", "</", "<tool"]
STRINGS = st.lists(st.sampled_from(NASTY), max_size=6).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(STRINGS, VALUES, max_size=3)
PROSE = st.lists(
    st.sampled_from(["<", "<tool", "_call", "text ", "\n", "é", "{", "}", "</tool_call>"]), max_size=5
).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=60)


def call_text(arguments: object, key: str, indent: int | None, name: str = "f") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False, indent=indent)


HERMES_CALLS = st.builds(
    lambda arguments, indent, space: (
        f"<tool_call>{space}{call_text(arguments, 'arguments', indent)}{space}</tool_call>"
    ),
    ARGUMENTS,
    st.sampled_from([None, 1]),
    st.sampled_from(["", "\n", " \n "]),
)
HERMES_BROKEN = st.sampled_from(["<tool_call>nothing</tool_call>", '<tool_call>{"name": 3}</tool_call>'])
HERMES_TURNS = st.lists(PROSE | HERMES_CALLS | HERMES_BROKEN, max_size=5).map("".join)


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def read(reader: HermesReader | Llama3JsonReader, parts: list[str]) -> list[Found]:
    """What the reader finds, texts that touch joined."""
    found = [one for part in parts for one in reader.push(part)] + reader.finish()
    joined: list[Found] = []
    for one in found:
        match (joined[-1] if joined else None, one):
            case (str() as before, str()):
                joined[-1] = before + one
            case (ArgumentsText(before), ArgumentsText(text)):
                joined[-1] = ArgumentsText(before + text)
            case _:
                joined.append(one)
    return joined


def is_call(value: Any) -> bool:
    return bool(value) and isinstance(value.get("name"), str) and isinstance(value.get("arguments"), dict)


def whole_hermes(text: str) -> list[tuple[str, object]]:
    """The reference: over the whole text, with the library's own JSON reader. ("text" | "call" | "fault", what)."""
    found: list[tuple[str, object]] = []

    def add(piece: str) -> None:
        if piece and found and found[-1][0] == "text":
            found[-1] = ("text", str(found[-1][1]) + piece)
        elif piece:
            found.append(("text", piece))

    while (begin := re.search("<tool_call>[ \t\r\n]*", text)) is not None:
        add(text[: begin.start()])
        rest = text[begin.end() :]
        try:
            value, end = (None, 0) if rest and not rest.startswith("{") else json.JSONDecoder().raw_decode(rest)
        except ValueError:
            return [*found, ("fault", "cut")]
        if not is_call(value):
            _, tag, text = rest.partition("</tool_call>")
            found.append(("fault", "malformed"))
            if not tag:
                return found
            continue
        found.append(("call", value["arguments"]))
        text = rest[end:]
        stripped = text.lstrip(" \t\r\n")
        if stripped.startswith("</tool_call>"):
            text = stripped.removeprefix("</tool_call>")
        elif "</tool_call>".startswith(stripped):
            return found  # an end tag that is cut is no text
    add(text)
    return found


def outline(found: list[Found]) -> list[tuple[str, object]]:
    """Asks on the way whether what came piece by piece is what comes whole."""
    outlined: list[tuple[str, object]] = []
    begun: CallBegun | None = None
    arguments = ""
    for one in found:
        match one:
            case str():
                outlined.append(("text", one))
            case CallBegun():
                begun, arguments = one, ""
            case ArgumentsText(text):
                assert begun is not None
                arguments += text
            case FoundCall():
                assert begun == CallBegun(one.name)
                assert json.loads(arguments) == one.arguments
                assert arguments in one.text
                begun = None
                outlined.append(("call", one.arguments))
            case Fault():
                assert one.is_begun == (begun is not None)
                begun = None
                outlined.append(("fault", one.reason))
    return outlined


@settings(max_examples=300, deadline=None)
@given(HERMES_TURNS, CUTS, st.integers(0, 400))
def test_any_pieces_of_a_turn_give_what_the_whole_text_gives(text: str, cuts: list[int], cut_at: int) -> None:
    for one in (text, text[:cut_at]):
        assert outline(read(HermesReader(), pieces(one, cuts))) == whole_hermes(one)


@settings(max_examples=200, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=3), CUTS, st.sampled_from([";", "; ", "\n"]), st.integers(1, 400))
def test_objects_in_a_row_are_calls_in_any_pieces(
    calls: list[dict[str, object]], cuts: list[int], between: str, cut_at: int
) -> None:
    texts = [call_text(one, "parameters", None) for one in calls]
    whole = between.join(texts)
    found = read(Llama3JsonReader(), pieces(whole, cuts))
    assert outline(found) == [("call", one) for one in calls]
    cut = whole[:cut_at]
    ends = [len(between.join(texts[: number + 1])) for number in range(len(texts))]
    num_whole = sum(end <= len(cut) for end in ends)
    expected: list[tuple[str, object]] = [("call", one) for one in calls[:num_whole]]
    last_end = ends[num_whole - 1] if num_whole else 0
    if cut[last_end:].strip(" ;\n"):
        expected.append(("fault", "cut"))
    assert outline(read(Llama3JsonReader(), pieces(cut, cuts))) == expected


def test_a_turn_that_begins_with_no_brace_is_text_with_its_braces() -> None:
    assert read(Llama3JsonReader(), list(' So: {"name": "f", "parameters": {}}')) == [
        ' So: {"name": "f", "parameters": {}}'
    ]


def test_a_call_comes_with_the_brace_that_ends_its_object_and_not_before() -> None:
    reader = HermesReader()
    text = '<tool_call>{"name": "f", "arguments": {"a": "}}</tool_call>"}}'
    found = [reader.push(one) for one in text[:-1]]
    start = text.index('{"a"')
    assert found[:start] == [[]] * start
    assert found[start:] == [
        [CallBegun("f"), ArgumentsText("{")],
        *([ArgumentsText(one)] for one in text[start + 1 : -1]),
    ]
    (call,) = reader.push(text[-1])
    assert call == FoundCall("f", {"a": "}}</tool_call>"}, text.removeprefix("<tool_call>"))


def test_only_a_beginning_of_the_tag_is_held_back() -> None:
    reader = HermesReader()
    assert reader.push("a <tool") == ["a "]
    assert reader.push("s") == ["<tools"]
    assert reader.push("<") == []
    assert reader.finish() == ["<"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"name": "f", "arguments": {"x": NaN}}', "NaN is not JSON"),
        ('{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}", "a call is not JSON"),
        ('{"name": "f", "arguments": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", "a call is not JSON"),
        ('{"name": "f", "arguments": [1]}', 'a call needs "name"'),
        ('{"arguments": {}}', 'a call needs "name"'),
        ("{]", "a call is not JSON"),
        ('{"name": "f", "arguments": {}, "name": "g"}', "a call has one of its keys twice"),
        ('{"arguments": {"a": 1}, "name": 3}', 'a call needs "name"'),
        ("[1]", "a call is no JSON object"),
    ],
)
def test_what_is_no_call_is_said_to_be_none_and_what_follows_is_read(body: str, message: str) -> None:
    whole = f"<tool_call>{body}</tool_call>"
    *begun, fault, _, _, call = read(HermesReader(), [whole, '<tool_call>{"name": "f", "arguments": {}}</tool_call>'])
    assert isinstance(fault, Fault)
    told = "".join(one.text for one in begun if isinstance(one, ArgumentsText))
    assert whole.endswith(told + fault.text)  # nothing of it is lost
    assert fault.is_begun or fault.text == whole
    assert fault.reason == "malformed"
    assert message in fault.message
    assert isinstance(call, FoundCall)


def test_a_format_that_is_not_known_is_an_error() -> None:
    with pytest.raises(Exception, match="'xml'; hermes, llama3_json are known"):
        reader_of("xml")
