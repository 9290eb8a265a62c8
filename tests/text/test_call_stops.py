"""Stop strings beside calls of tools: the text ends before the first stop that stands in text, over any split into
tokens; one that stands in a call, or goes over one, is none."""

import json
from copy import copy
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.grammars import CallsInText, ToolFormat
from loopwright.text.call_stops import ProseStops, stop_finder
from loopwright.text.stop import StopMatcher
from loopwright.text.stream import TextStream

PROSE = st.lists(st.sampled_from(["a", "b", "é", "<", "<tool", "\n", " ", "stop", "{", "[TOOL_"]), max_size=6).map(
    "".join
)
STOPS = st.lists(
    st.sampled_from(["a", "ab", "stop", "é", "<", "\n", '"', "{", "tool", "b\n", " ", "</tool_call>"]),
    min_size=1, max_size=4, unique=True,
)  # fmt: skip
ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "stop", "é"]), st.sampled_from(["b", "\n", "<", "stop é", "}"]), max_size=2
)


def hermes(arguments: dict[str, str]) -> str:
    body = json.dumps({"name": "stop", "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def marked(arguments: dict[str, str]) -> str:
    return f"[TOOL_CALLS]stop[ARGS]{json.dumps(arguments, ensure_ascii=False)}"


WRITTEN: dict[str, Any] = {"hermes": hermes, "mistral_args": marked}
TURNS = st.lists(st.tuples(PROSE, ARGUMENTS), min_size=1, max_size=3)


def expected(stretches: list[tuple[str, str]], stops: list[str]) -> tuple[str, str | None]:
    """The text before the first stop, and the stop. Each stretch of text is followed by a call, or nothing."""
    told = ""
    for text, call in stretches:
        is_only_space = not text.strip() and call
        match = None if is_only_space else first_stop(text, stops)
        if match is not None:
            return told + text.encode()[: match[1]].decode(), match[0]
        told += text + call
    return told, None


def first_stop(text: str, stops: list[str]) -> tuple[str, int] | None:
    """The stop that is complete first, the longest of those, and where it begins."""
    for end in range(1, len(text.encode()) + 1):
        if ends := [one for one in stops if text.encode()[:end].endswith(one.encode())]:
            stop = max(ends, key=lambda one: len(one.encode()))
            return stop, end - len(stop.encode())
    return None


@pytest.mark.parametrize("format", WRITTEN)
@settings(max_examples=300, deadline=None)
@given(turn=TURNS, last=PROSE, stops=STOPS, cuts=st.lists(st.integers(0, 300), max_size=40))
def test_a_text_ends_before_the_first_stop_that_no_call_holds_over_any_split(
    format: Any, turn: list[tuple[str, dict[str, str]]], last: str, stops: list[str], cuts: list[int]
) -> None:
    stretches = [(text, WRITTEN[format](arguments)) for text, arguments in turn] + [(last, "")]
    whole = "".join(text + call for text, call in stretches).encode()
    wanted = expected(stretches, stops)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for parts in ([whole], [whole[start:end] for start, end in pairwise(places)], [bytes([one]) for one in whole]):
        stream = TextStream(parts, stop_finder(stops, CallsInText(format)))
        text = "".join(stream.push(number) for number in range(len(parts))) + stream.finish()
        assert (text, stream.match and stream.match.stop) == wanted


@pytest.mark.parametrize("format", get_args(ToolFormat))
def test_what_is_told_of_a_call_is_not_held_back_for_the_sake_of_a_stop(format: Any) -> None:
    finder = ProseStops(["xyz", "\n"], CallsInText(format))
    call = {
        "hermes": "<tool_call>\n" + '{"name": "f", "arguments": {"a": "xy',
        "smollm2": '<tool_call>[{"name": "f", "arguments": {"a": "xy',
        "llama3_json": '{"name": "f", "parameters": {"a": "xy',
        "gemma": '```json\n{"name": "f", "parameters": {"a": "xy',
        "mistral": '[{"name": "f", "arguments": {"a": "xy',
        "mistral_args": '[TOOL_CALLS]f[ARGS]{"a": "xy',
        "pythonic": '[f(a="xyz", b="xy',
    }[format]
    for byte in call.encode():
        assert finder.push(bytes([byte])) is None
    assert finder.num_held == (len(' b="xy') if format == "pythonic" else 0)  # an argument comes when it is whole
    assert finder.push(b"z\n") is None
    assert finder.finish() is None


def test_a_copy_goes_on_by_itself() -> None:
    finder = ProseStops(["stop"], CallsInText("hermes"))
    assert finder.push(b"a <tool_cal") is None
    other = copy(finder)
    assert other.push(b"l>\n{") is None
    assert other.push(b'"name": "stop"') is None
    match = finder.push(b"- stop")
    assert match is not None
    assert (match.stop, match.start) == ("stop", len("a <tool_cal- "))


def test_without_calls_or_stops_it_is_the_plain_matcher() -> None:
    assert isinstance(stop_finder(["a"], None), StopMatcher)
    assert isinstance(stop_finder([], CallsInText("hermes")), StopMatcher)
