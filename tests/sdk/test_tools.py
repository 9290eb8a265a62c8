"""A function's signature becomes a schema, and arguments are checked as JSON Schema says. Oracle: jsonschema."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.grammar.json_schema import check_schema
from loopwright.sdk import BadRequest, Tool, tool
from loopwright.sdk.schema_check import check, unknown_keywords
from system_rig import byte_system, in_loop


@tool
async def weather(
    city: str,
    days: Annotated[int, "How many days ahead"] = 1,
    unit: Literal["C", "F"] = "C",
    tags: list[str] | None = None,
    extra: dict[str, float | bool] = {},  # noqa: B006 (a default as programs write them)
) -> str:
    """What the weather will be.

    Takes the nearest station.

    Args:
        city: The city, in English,
            without its country.
        unit: Of temperatures.

    Returns:
        One line.
    """
    return f"{city} {days} {unit} {tags} {extra}"


def test_a_signature_and_its_docstring_become_a_schema() -> None:
    assert weather.name == "weather"
    assert weather.description == "What the weather will be.\n\nTakes the nearest station."
    assert weather.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, in English, without its country."},
            "days": {"type": "integer", "description": "How many days ahead", "default": 1},
            "unit": {"enum": ["C", "F"], "description": "Of temperatures.", "default": "C"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "extra": {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
                "default": {},
            },
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    jsonschema.Draft202012Validator.check_schema(weather.parameters)
    check_schema(weather.parameters)  # what a tool declares can also be enforced on what a model writes
    assert unknown_keywords(weather.parameters) == set()


def test_a_tool_is_called_by_name_and_its_defaults_are_the_functions() -> None:
    assert asyncio.run(weather(city="Oslo", tags=["a"])) == "Oslo 1 C ['a'] {}"

    @tool
    def double(n: int) -> int:
        return 2 * n

    assert asyncio.run(double(n=4)) == 8


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "weather.city"),
        ({"city": 3}, "weather.city"),
        ({"city": "x", "town": "y"}, "weather.town"),
        ({"city": "x", "days": True}, "weather.days"),
        ({"city": "x", "days": 1.5}, "weather.days"),
        ({"city": "x", "unit": "K"}, "weather.unit"),
        ({"city": "x", "tags": ["a", 1]}, "weather.tags"),
        ({"city": "x", "extra": {"a": "b"}}, "weather.extra.a"),
    ],
)
def test_arguments_that_do_not_fit_name_what_is_wrong_and_nothing_is_called(
    arguments: dict[str, Any], field: str
) -> None:
    called = []
    spy = Tool(weather.name, weather.description, weather.parameters, lambda given: called.append(given))
    with pytest.raises(BadRequest) as caught:
        asyncio.run(spy(**arguments))
    assert caught.value.field == field
    assert called == []


def with_star(*words: str) -> None: ...
def with_stars(**words: str) -> None: ...
def by_position(word: str, /) -> None: ...
def without_type(word) -> None: ...
def with_a_set(words: set[str]) -> None: ...
def with_number_keys(words: dict[int, str]) -> None: ...
def with_bytes(word: Literal[b"x"]) -> None: ...
def with_a_default(word: str = object) -> None: ...  # type: ignore[assignment]


@pytest.mark.parametrize(
    "function",
    [with_star, with_stars, by_position, without_type, with_a_set, with_number_keys, with_bytes, with_a_default],
)
def test_a_signature_that_no_schema_describes_is_refused_with_the_tool_and_the_parameter(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(TypeError, match=f"tool {function.__name__}: the parameter 'words?'"):
        tool(function)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-3, 3), st.sampled_from(["", "a", "bcd"]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
TYPES = st.sampled_from(["string", "boolean", "number", "null", "array", "object"])
LEAVES = st.one_of(
    st.just({}),
    st.booleans(),
    st.builds(lambda one: {"type": one}, TYPES),
    st.builds(lambda some: {"type": some}, st.lists(TYPES, min_size=1, max_size=2, unique=True)),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, VALUES),
    st.builds(lambda low, high: {"minimum": low, "maximum": high}, st.integers(-2, 0), st.integers(0, 2)),
    st.builds(lambda low, high: {"minLength": low, "maxLength": high}, st.integers(0, 1), st.integers(1, 2)),
    st.builds(lambda low, high: {"minItems": low, "maxItems": high}, st.integers(0, 1), st.integers(1, 2)),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda one: {"items": one}, inner),
        st.builds(
            lambda a, b, rest, required: {
                "type": "object",
                "properties": {"a": a, "b": b},
                "additionalProperties": rest,
                "required": required,
            },
            inner, inner, inner, st.lists(st.sampled_from("ab"), unique=True),
        ),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(value=VALUES, schema=SCHEMAS)
def test_a_value_fits_exactly_when_jsonschema_says_so(value: Any, schema: Any) -> None:
    try:
        check(value, schema, "tool")
    except BadRequest:
        fits = False
    else:
        fits = True
    assert fits == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_keywords_that_are_not_checked_are_told_of() -> None:
    schema = {"properties": {"a": {"pattern": "x", "title": "A"}}, "items": {"anyOf": [{"$ref": "#"}]}}
    assert unknown_keywords(schema) == {"pattern", "$ref"}


PROGRAM = """
from loopwright import tool

@tool
async def shout(text: str, times: int = 1) -> str:
    '''Says it louder.'''
    return text.upper() * times

async def main():
    try:
        await shout(text=1)
    except Exception as error:
        wrong = [type(error).__name__, error.field]
    return [shout.name, shout.description, shout.parameters["required"], await shout(text="a", times=3), wrong]
"""


@pytest.mark.wasm
def test_a_program_declares_tools_in_the_sandbox_as_it_does_natively() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            wanted = ["shout", "Says it louder.", ["text"], "AAA", ["BadRequest", "shout.text"]]
            assert (await system.run(PROGRAM, "native")).result == wanted
            assert (await system.run(PROGRAM, "wasm")).result == wanted

    in_loop(scenario)
