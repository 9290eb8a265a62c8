"""Reads what an answer's text is to be held to: a response format, or one of the guided fields. Never compiles it.

The two kinds of fields are one thing to the engine, a grammar, so a request has at most one. Used by `generation`.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.core.grammars import GrammarKind


class PlainText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    pass


class JsonObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    pass


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema. It is enforced, whether strict or not."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None  # inert
    strict: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    json_schema: NamedSchema


ResponseFormat: TypeAlias = PlainText | JsonObject | JsonSchema


class GuidedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of a body that say what the text must be, beside a response format; extensions."""

    guided_json: dict[str, Any] | str | None = None  # a schema
    guided_regex: Annotated[str, Meta(min_length=1)] | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: Annotated[str, Meta(min_length=1)] | None = None  # Lark's


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the field of the request that asks for it."""

    kind: GrammarKind
    source: str
    field: str


def read_constraint(response_format: ResponseFormat | None, body: GuidedBody) -> Constraint | None:
    """Raises BadRequest when there are two."""
    found = [*_of_response_format(response_format), *_guided(body)]
    if len(found) > 1:
        raise BadRequest(
            f"{found[1].field}: the text is held to {found[0].field} already",
            hint="send one of the two",
            field=found[1].field,
        )
    return found[0] if found else None


def _of_response_format(given: ResponseFormat | None) -> list[Constraint]:
    match given:
        case None | PlainText():
            return []
        case JsonObject():
            return [Constraint("json_object", "", "response_format")]
        case JsonSchema():
            field = "response_format.json_schema.schema"
            return [Constraint("json_schema", json.dumps(given.json_schema.schema), field)]


def _guided(body: GuidedBody) -> list[Constraint]:
    found: list[Constraint] = []
    if body.guided_json is not None:
        source = body.guided_json if isinstance(body.guided_json, str) else json.dumps(body.guided_json)
        found.append(Constraint("json_schema", source, "guided_json"))
    if body.guided_regex is not None:
        found.append(Constraint("regex", body.guided_regex, "guided_regex"))
    if body.guided_choice is not None:
        found.append(Constraint("choice", json.dumps(body.guided_choice), "guided_choice"))
    if body.guided_grammar is not None:
        found.append(Constraint("lark", body.guided_grammar, "guided_grammar"))
    return found
