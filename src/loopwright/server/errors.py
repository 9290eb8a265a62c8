"""Turns errors into HTTP answers: the one table of statuses, and OpenAI's error object. Never decides what is an error.

Registered in app, used by the streams for errors that come after the answer has begun.
"""

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
CLIENT_CLOSED = 499  # nobody reads it


class OpenAIError(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


def status_of(error: LoopwrightError) -> int:
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def openai_error(error: LoopwrightError) -> dict[str, OpenAIError]:
    """The body of an answer that reports the error."""
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    return {"error": OpenAIError(message, _type_of(status_of(error)), error.field or None, _code_of(error))}


def error_response(error: LoopwrightError) -> Response:
    """Says whether a repetition makes sense, in the header that OpenAI's clients obey."""
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.retryable:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return json_response(openai_error(error), status_of(error), headers)


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(body), status, headers, media_type="application/json")


async def on_loopwright_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LoopwrightError)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What is wrong with the request as HTTP: no such route, wrong method, wrong media type, too large."""
    assert isinstance(error, HTTPException)
    body = OpenAIError(_detail(request, error), _type_of(error.status_code), None, "bad_request")
    return json_response({"error": body}, error.status_code, error.headers)


def _detail(request: Request, error: HTTPException) -> str:
    route = f"{request.method} {request.url.path}"
    if error.status_code == 404:  # what is missing behind a route is a NotFound of ours
        return f"there is no route {route}; GET /openapi.json lists those there are"
    if error.status_code == 405:
        return f"there is no {route}; that path takes {(error.headers or {}).get('Allow', 'other methods')}"
    return error.detail


async def on_client_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def on_fault(request: Request, error: Exception) -> Response:
    """A fault of ours: its traceback goes to the log (by whoever calls the app), never to the client."""
    return error_response(InternalError("the server failed to handle the request", hint="its log says more"))


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
