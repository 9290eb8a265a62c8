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


OK = (200, b"application/json", b'{"object": "list", "data": []}')
WRONG = {
    "ServerError": (500, *OK[1:]),
    "UndefinedStatusCode": (299, *OK[1:]),
    "UndefinedContentType": (200, b"text/plain", b"list"),
    "JsonSchemaError": (200, b"application/json", b'{"object": "list"}'),
}
"""Answers that are not as described, by what schemathesis calls them."""


def answering(status: int, kind: bytes, body: bytes) -> Any:
    """The application, but for GET /v1/models, which gets this answer."""
    inner = make_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != "/v1/models":
            await inner(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_an_answer_that_is_not_as_described_is_found(wrong: str | None) -> None:
    app = answering(*(OK if wrong is None else WRONG[wrong]))
    case = schemathesis.openapi.from_asgi("/openapi.json", app)["/v1/models"]["GET"].Case()
    if wrong is None:
        case.call_and_validate(checks=CHECKS)
        return
    with pytest.raises(BaseExceptionGroup) as caught:
        case.call_and_validate(checks=CHECKS)
    assert wrong in {type(one).__name__ for one in caught.value.exceptions}


def test_schemathesis_asks_every_operation() -> None:
    asked = {(one.ok().path, one.ok().method.upper()) for one in schema.get_all_operations()}
    asked.add(("/openapi.json", "GET"))  # which it has asked already, to know the others
    paths = openapi_document([route for route in make_app().routes if isinstance(route, Route)])["paths"]
    assert asked == {(path, method.upper()) for path, methods in paths.items() for method in methods}
    assert {"/v1/responses", "/v1/messages", "/v1/completions"} <= {path for path, _ in asked}


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
