"""Grammars that a text is held to: what `generate` takes as its option `grammar`. Never compiles one: the host does.

A grammar is enforced as it is written, or `generate` raises BadRequest that says where it cannot be.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.sdk.argument_check import checked


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must be, as a whole: what `json_schema`, `json_object`, `regex`, `lark` and `choice` make."""

    kind: str
    source: str = ""


def grammar_fields(grammar: Grammar) -> dict[str, str]:
    """A grammar as the ABI's generate takes it."""
    return {"kind": grammar.kind, "source": grammar.source}


@checked
def json_schema(schema: dict[str, Any] | str) -> Grammar:
    """JSON that a schema describes (draft 2020-12), written in one line as json.dumps writes it, with the properties in
    the order of the schema."""
    return Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema))


def json_object() -> Grammar:
    """Any JSON object."""
    return Grammar("json_object")


@checked
def regex(pattern: str) -> Grammar:
    """A text that a regular expression matches from its first character to its last."""
    return Grammar("regex", pattern)


@checked
def lark(source: str) -> Grammar:
    """A text of a context-free grammar, written as Lark's; its rule `start` is the whole."""
    return Grammar("lark", source)


@checked
def choice(options: Sequence[str]) -> Grammar:
    """One of some texts."""
    return Grammar("choice", json.dumps(list(options)))
