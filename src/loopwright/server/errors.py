"""Turns errors into HTTP answers: the one table of statuses, and the error objects of OpenAI and of Anthropic.

Never decides what is an error. Registered in app, used by the streams for errors that come after the answer has begun.
The path says whose clients ask.
"""

import re
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from loopwright.core.errors import (
    BadRequest,
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    LimitExceeded,
    LoopwrightError,
    NotFound,
    OutOfPages,
    Overloaded,
    PermissionDenied,
    ProgramError,
    ProgramRejected,
    ToolFailed,
    Unauthenticated,
    Unavailable,
)
from loopwright.server.json_text import encode_json
from loopwright.server.origin import current_origin, is_of_anthropic

STATUS_OF: Mapping[type[LoopwrightError], int] = {
    BadRequest: 400,
    NotFound: 404,
    ProgramRejected: 422,
    ProgramError: 422,  # the program is the client's own: sent again, it fails again
    LimitExceeded: 422,
    OutOfPages: 503,
    DeadlineExceeded: 504,
    Unauthenticated: 401,
    PermissionDenied: 403,
    Cancelled: 409,
    Overloaded: 429,
    ToolFailed: 502,
    Unavailable: 503,
    LoopwrightError: 500,
}
"""The status of an error is that of its nearest ancestor here."""

RETRY_AFTER_S = 1
_PLACE = re.compile(r'File "([^"\n]+)", line (\d+)')
CLIENT_CLOSED = 499  # nobody reads it


class OpenAIError(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


class AnthropicError(msgspec.Struct, frozen=True):
    """Anthropic's error object."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of every error of Anthropic's routes, and an event of their streams."""

    error: AnthropicError
    request_id: str | None


_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_of(error: LoopwrightError) -> int:
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def of_program(error: LoopwrightError) -> LoopwrightError:
    """What a client sees of an error that ended a run of its program: a call that the program made wrongly, or may not
    make, is no fault of the request. That the conversation is too long for the model is."""
    if isinstance(error, ContextTooLong) or not isinstance(error, BadRequest | PermissionDenied):
        return error
    place = _PLACE.findall(error.traceback)
    where = f" ({place[-1][0]}, line {place[-1][1]})" if place else ""
    message = f"the program failed: {type(error).__name__}: {error.message}{where}"
    return ProgramError(message, hint=error.hint, traceback=error.traceback)


def openai_error(error: LoopwrightError) -> dict[str, OpenAIError]:
    """The body of an answer that reports the error."""
    kind = "program_error" if isinstance(error, ProgramError) else _type_of(status_of(error))
    return {"error": OpenAIError(_message(error), kind, error.field or None, _code_of(error))}


def anthropic_error(error: LoopwrightError) -> AnthropicErrorBody:
    """The same for Anthropic's clients, whose error object has no place for the field: the message begins with it."""
    return _anthropic_body(status_of(error), _message(error))


def error_response(error: LoopwrightError, path: str = "") -> Response:
    """Says whether a repetition makes sense, in the header that OpenAI's and Anthropic's clients obey."""
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.retryable:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    body = anthropic_error(error) if is_of_anthropic(path) else openai_error(error)
    return json_response(body, status_of(error), headers)


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(body), status, headers, media_type="application/json")


async def on_loopwright_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LoopwrightError)
    return error_response(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What is wrong with the request as HTTP: no such route, wrong method, wrong media type, too large."""
    assert isinstance(error, HTTPException)
    status, detail = error.status_code, _detail(request, error)
    if is_of_anthropic(request.url.path):
        return json_response(_anthropic_body(status, detail), status, error.headers)
    body = OpenAIError(detail, _type_of(status), None, "bad_request")
    return json_response({"error": body}, status, error.headers)


def _detail(request: Request, error: HTTPException) -> str:
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:  # what is missing behind a route is a NotFound of ours
        return f"there is no route {route}; {_where_to_look(request)}"
    if error.status_code == 405:
        return f"there is no {route}; that path takes {(error.headers or {}).get('Allow', 'other methods')}"
    return error.detail


def _where_to_look(request: Request) -> str:
    path = request.url.path
    paths = {getattr(route, "path", "") for route in request.app.routes}
    if path.startswith("/v1/v1/") and path[3:] in paths:
        return "the base URL of this client is the server itself, without /v1"
    if f"/v1{path}" in paths:
        return "the base URL of this client ends with /v1"
    return "GET /openapi.json lists those there are"


async def on_client_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: its traceback goes to the log (by whoever calls the app), never to the client."""
    failed = InternalError("the server failed to handle the request", hint="its log says more")
    return error_response(failed, request.url.path)


def _message(error: LoopwrightError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _anthropic_body(status: int, message: str) -> AnthropicErrorBody:
    named = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return AnthropicErrorBody(AnthropicError(named, message), current_origin().request_id or None)


def _type_of(status: int) -> str:
    if status in (403, 429):
        return "permission_error" if status == 403 else "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _code_of(error: LoopwrightError) -> str:
    if isinstance(error, ContextTooLong):
        return "context_length_exceeded"
    if isinstance(error, NotFound) and error.field == "model":
        return "model_not_found"
    if isinstance(error, Unauthenticated):
        return "invalid_api_key"
    return error.code
