"""Describes the server's routes as an OpenAPI document. Never handles a request. Used by app and by the routes.

A handler says by `takes` what cannot be seen from outside: its body, its query, its answer. Everything else comes from
the list of routes, so a route that is served is described.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from starlette.routing import BaseRoute, Route

from loopwright.server.errors import OpenAIError

Json = dict[str, Any]
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

REFERENCE = "#/components/schemas/{name}"
ANY_OBJECT: Json = {"type": "object"}

_PARAMETER = re.compile(r"{(\w+)(:path)?}")
_METHOD = re.compile(r"^(?:(?:GET|POST|DELETE) \S+(?:, )?)+:? ?")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a handler says of itself."""

    body: type[msgspec.Struct] | None = None
    query: Mapping[str, Json] = field(default_factory=dict)  # JSON schemas by name
    answer: type[msgspec.Struct] | Json = field(default_factory=lambda: ANY_OBJECT)
    status: int = 200
    streams: bool = False  # may answer with server-sent events
    media: str = "application/json"
    error: type[msgspec.Struct] | None = None


def takes(
    body: type[msgspec.Struct] | None = None,
    *,
    query: Mapping[str, Json] | None = None,
    answer: type[msgspec.Struct] | Json = ANY_OBJECT,
    status: int = 200,
    streams: bool = False,
    media: str = "application/json",
    error: type[msgspec.Struct] | None = None,
) -> Callable[[HandlerT], HandlerT]:
    """Marks a handler with what it takes and answers."""

    def mark(handler: HandlerT) -> HandlerT:
        handler.taken = Taken(body, query or {}, answer, status, streams, media, error)  # type: ignore[attr-defined]
        return handler

    return mark


class ErrorBody(msgspec.Struct, frozen=True):
    """Every error of a route that says nothing else."""

    error: OpenAIError


def openapi_document(routes: Iterable[BaseRoute]) -> Json:
    """The document, in OpenAPI 3.1."""
    found = [route for route in routes if isinstance(route, Route)]
    taken: list[Taken] = [getattr(route.endpoint, "taken", Taken()) for route in found]
    types: set[type] = {ErrorBody}
    for one in taken:
        types |= {kind for kind in (one.body, one.answer, one.error) if isinstance(kind, type)}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    references, schemas = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    by_type = dict(zip(ordered, references, strict=True))
    paths: dict[str, Json] = {}
    for route, one in zip(found, taken, strict=True):
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(method.lower(), route, one, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Loopwright", "version": version("loopwright")},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(method: str, route: Route, taken: Taken, by_type: Mapping[type, Json]) -> Json:
    answer = by_type[taken.answer] if isinstance(taken.answer, type) else taken.answer
    content: Json = {taken.media: {"schema": answer}}
    if taken.streams:
        content["text/event-stream"] = {}
    error = {
        "description": "What is wrong.",
        "content": {"application/json": {"schema": by_type[taken.error or ErrorBody]}},
    }
    answered = {"description": "The answer.", "content": content}
    operation: Json = {
        "operationId": f"{method}_{route.endpoint.__name__}",
        "summary": _summary(route.endpoint.__doc__ or ""),
        "responses": {str(taken.status): answered, "4XX": error, "5XX": error},
    }
    named = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _names(route)]
    named += [{"name": name, "in": "query", "schema": schema} for name, schema in taken.query.items()]
    if named:
        operation["parameters"] = named
    if taken.body is not None:
        body = {"schema": by_type[taken.body]}
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    return operation


def _names(route: Route) -> list[str]:
    return [found[1] for found in _PARAMETER.finditer(route.path)]


def _summary(docstring: str) -> str:
    """The first line of a handler's docstring, without the method and path that it begins with."""
    first = docstring.strip().partition("\n")[0]
    return _METHOD.sub("", first).strip() or first
