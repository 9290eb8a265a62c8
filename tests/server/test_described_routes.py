"""The OpenAPI document against the application that serves it: every route is in it, and whatever schemathesis makes of
it is answered in a form that it describes, and never with a fault."""

from typing import Any

import pytest
import schemathesis
from fake_runs import FakeRun, FakeRuns
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from loopwright.server.app import create_app
from loopwright.server.openapi import openapi_document

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
NUM_EXAMPLES = 8  # of each operation


def answer(run: FakeRun) -> None:
    """What every built-in program could have said."""
    run.text("text")
    run.finish({"tokens": [1, 2], "strings": ["a", "b"], "text": "ab"})


def make_app() -> Any:
    fake = FakeRuns(answer)
    fake.add_program("agent")
    return create_app(fake, host="0.0.0.0")


schema = schemathesis.openapi.from_asgi("/openapi.json", make_app())


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_whatever_is_sent_is_answered_as_described(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


def test_every_route_is_described_with_its_methods_and_a_summary() -> None:
    routes = [route for route in make_app().routes if isinstance(route, Route)]
    document = openapi_document(routes)
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    served = {(route.path.replace(":path", ""), method) for route in routes for method in route.methods or ()}
    assert described == {(path, method) for path, method in served if method != "HEAD"}
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert all(operation["summary"] for operation in operations)
    assert len({operation["operationId"] for operation in operations}) == len(operations)


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")])
def test_a_body_is_described_by_the_type_that_reads_it(path: str, field: str) -> None:
    document = openapi_document(make_app().routes)
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert body["additionalProperties"] is False
    assert {"model", field} <= set(body["required"])
