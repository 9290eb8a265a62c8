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
from loopwright.sdk.tool_formats import READERS, CallReader, HermesReader, reader_of

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


def read(reader: CallReader, parts: list[str]) -> list[Found]:
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
                assert arguments in one.text or one.text.endswith(")")  # in JSON, as it was written
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
    found = read(reader_of("llama3_json"), pieces(whole, cuts))
    assert outline(found) == [("call", one) for one in calls]
    cut = whole[:cut_at]
    ends = [len(between.join(texts[: number + 1])) for number in range(len(texts))]
    num_whole = sum(end <= len(cut) for end in ends)
    expected: list[tuple[str, object]] = [("call", one) for one in calls[:num_whole]]
    last_end = ends[num_whole - 1] if num_whole else 0
    if cut[last_end:].strip(" ;\n"):
        expected.append(("fault", "cut"))
    assert outline(read(reader_of("llama3_json"), pieces(cut, cuts))) == expected


def test_a_turn_that_begins_with_no_brace_is_text_with_its_braces() -> None:
    assert read(reader_of("llama3_json"), list(' So: {"name": "f", "parameters": {}}')) == [
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
    assert fault.text == whole  # nothing of it is lost
    assert fault.is_begun == bool(begun)
    assert fault.reason == "malformed"
    assert message in fault.message
    assert isinstance(call, FoundCall)


def test_a_format_that_is_not_known_is_an_error() -> None:
    with pytest.raises(
        Exception, match="'xml'; hermes, smollm2, llama3_json, gemma, mistral, mistral_args, pythonic are known"
    ):
        reader_of("xml")


NAMES = st.sampled_from(["f", "g.h", "look_up"])
NAMED = st.dictionaries(st.sampled_from(["a", "b_1", "ß"]), VALUES, max_size=3)
CALLS = st.lists(st.tuples(NAMES, NAMED), min_size=1, max_size=3)
JUNK = st.sampled_from(["", "]", "}", '"', "x", "[TOOL_", "[f", "(", "<tool_call>[", ", 3]"])


def written(format: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """As a model of the family writes them."""
    if format == "pythonic":
        return f"[{', '.join(f'{name}({python_arguments(arguments)})' for name, arguments in calls)}]"
    if format == "gemma in python":
        lines = [f"{name}({python_arguments(arguments)})" for name, arguments in calls]
        return "\n".join(["```tool_code", *lines, "```"])
    if format == "mistral_args":
        return "".join(
            f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls
        )
    key = "parameters" if format.startswith(("llama3_json", "gemma")) else "arguments"
    texts = [call_text(arguments, key, None, name) for name, arguments in calls]
    match format:
        case "hermes":
            return "".join(f"<tool_call>\n{one}\n</tool_call>" for one in texts)
        case "smollm2":
            return f"<tool_call>[{', '.join(texts)}]</tool_call>"
        case "llama3_json" | "gemma":
            return "; ".join(texts)
        case "gemma in json":
            return "\n".join(["```json", *texts, "```"])
        case "gemma in a list":
            return f"```json\n[{', '.join(texts)}]\n```"
    return f"[{', '.join(texts)}]"


WAYS = [*READERS, "gemma in json", "gemma in a list", "gemma in python"]


def reader_for(way: str) -> CallReader:
    return reader_of(way.split(" ")[0])


def python_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


@pytest.mark.parametrize("format", WAYS)
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, cuts=CUTS, after=st.sampled_from(["", " done", "\n"]))
def test_calls_of_every_family_come_back_over_any_split(
    format: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int], after: str
) -> None:
    text = written(format, calls) + after
    whole = read(reader_for(format), [text])
    assert [(one.name, one.arguments) for one in whole if isinstance(one, FoundCall)] == calls
    assert not [one for one in whole if isinstance(one, Fault)]
    assert "".join(one for one in whole if isinstance(one, str)).strip() == after.strip()
    assert read(reader_for(format), pieces(text, cuts)) == whole
    assert read(reader_for(format), list(text)) == whole
    outline(whole)


@pytest.mark.parametrize("format", WAYS)
def test_every_split_of_a_text_in_two_gives_the_same(format: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("f", {"a": 'x"]}</tool_call>, (é\\', "b": [True, None, {"c": 1.5}]}),
        ("look_up", {}),
    ]
    text = f"{written(format, calls)} end"
    whole = read(reader_for(format), [text])
    assert [(one.name, one.arguments) for one in whole if isinstance(one, FoundCall)] == calls
    for place in range(len(text) + 1):
        assert read(reader_for(format), [text[:place], text[place:]]) == whole


@pytest.mark.parametrize("format", WAYS)
@settings(max_examples=80, deadline=None)
@given(calls=CALLS, cuts=CUTS, cut_at=st.integers(0, 120), junk=JUNK)
def test_whatever_is_written_is_read_the_same_over_any_split_and_nothing_is_lost(
    format: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int], cut_at: int, junk: str
) -> None:
    text = written(format, calls)
    text = text[:cut_at] + junk + text[cut_at + 1 :]
    whole = read(reader_for(format), [text])
    assert read(reader_for(format), pieces(text, cuts)) == whole
    told = "".join(one if isinstance(one, str) else one.text for one in whole if not isinstance(one, CallBegun))
    frame = (
        set("NoneTrueFalse")
        | set("<tool_code>`json/[]{}(),;:=\"' \n\\TOOL_CALLSARGS")
        | set('"name""arguments""parameters"')
    )
    missing = [character for character in set(text) - frame if character not in told and character not in "fghlokup._"]
    assert not missing


def test_a_call_that_the_end_cuts_has_what_was_written_of_its_arguments() -> None:
    for format, text, told in (
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', '{"a": "b'),
        ("smollm2", '<tool_call>[{"name": "f", "arguments": {"a": "b', '{"a": "b'),
        ("llama3_json", '{"name": "f", "parameters": {"a": "b', '{"a": "b'),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "b', '{"a": "b'),
        ("mistral_args", '[TOOL_CALLS]f[ARGS]{"a": "b', '{"a": "b'),
        ("mistral_args", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": "b', '{"a": "b'),
        ("gemma", '```json\n[{"name": "f", "parameters": {"a": "b', '{"a": "b'),
        ("gemma", '```tool_code\nf(a="b", c="d', '{"a": "b"'),
        ("pythonic", '[f(a="b", c="d', '{"a": "b"'),
    ):
        begun, arguments, cut = read(reader_of(format), list(text))
        assert begun == CallBegun("f")
        assert arguments == ArgumentsText(told)
        assert isinstance(cut, Fault)
        assert (cut.reason, cut.is_begun) == ("cut", True)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("mistral", "[1, 2] is a list"),
        ("mistral", "Use [TOOL_CALLS]"),
        ("mistral", "["),
        ("pythonic", "[1, 2] is a list"),
        ("pythonic", "[see] above"),
        ("pythonic", "[f"),
        ("llama3_json", "No {"),
        ("smollm2", "<tool"),
        ("mistral_args", "Use [TOOL_"),
        ("gemma", "```python\nf()\n```"),
        ("gemma", "```json\n[1, 2]\n```"),
        ("gemma", "```tool_code\n[1]\n```"),
        ("gemma", "```tool"),
    ],
)
def test_what_only_looks_like_the_beginning_of_calls_is_text(format: str, text: str) -> None:
    assert read(reader_of(format), list(text)) == [text]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("3", "has no name"),
        ("a=b", "is no literal"),
        ("a=1, a=2", "twice"),
        ("a=f()", "is no literal"),
        ("a={1: 2}", "is no literal"),
    ],
)
def test_python_that_is_no_call_with_literals_is_said_to_be_none(arguments: str, message: str) -> None:
    found = read(reader_of("pythonic"), [f"[f({arguments}), g()]"])
    fault, rest = found[-2:]
    assert isinstance(fault, Fault)
    assert message in fault.message
    assert (fault.text[-1], rest) == (")", ", g()]")


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("written", ["a\\{q}b, c) d", "\\\\", "(", ")]}", "{q}, x={q}"])
def test_the_end_of_an_argument_is_found_whatever_its_strings_hold(quote: str, written: str) -> None:
    value = eval(literal := f"{quote}{written.replace('{q}', 'q' if written[0] == '{' else quote)}{quote}")
    text = f"[f(a={literal}, b=[({literal}), {{'k': {literal}}}]), g()]"
    for parts in ([text], list(text)):
        calls = [one for one in read(reader_of("pythonic"), parts) if isinstance(one, FoundCall)]
        assert [one.arguments for one in calls] == [{"a": value, "b": [value, {"k": value}]}, {}]


@pytest.mark.parametrize("head", ["", "f", "f g[ARGS]", "x" * 400 + "[ARGS]", "f[ARGS]3", "f[CALL_ID][x][ARGS]{}"])
def test_a_mark_without_a_name_and_arguments_is_told_as_no_call(head: str) -> None:
    text = f"So: [TOOL_CALLS]{head} and on."
    found = read(reader_of("mistral_args"), [text])
    assert "".join(one if isinstance(one, str) else one.text for one in found if not isinstance(one, CallBegun)) == text
    assert not [one for one in found if isinstance(one, FoundCall)]
    assert read(reader_of("mistral_args"), list(text)) == found


@pytest.mark.parametrize("way", [one for one in WAYS if one not in ("llama3_json", "gemma")])
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, cuts=CUTS, answer=VALUES)
def test_beside_an_answer_that_is_held_a_turn_is_calls_or_the_answer(
    way: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int], answer: Any
) -> None:
    format = way.split(" ")[0]
    whole = json.dumps({"answer": answer}, ensure_ascii=False)
    for parts in ([whole], pieces(whole, cuts), list(whole)):
        assert read(reader_of(format, is_answer_held=True), parts) == [whole]  # tags in its strings are text
    text = written(way, calls)
    for parts in ([text], pieces(text, cuts), list(text)):
        found = read(reader_of(format, is_answer_held=True), parts)
        assert [(one.name, one.arguments) for one in found if isinstance(one, FoundCall)] == calls
