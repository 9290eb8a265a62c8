"""What a request says of itself beside its body: its id and its trace. Never decides what it may do. Used by app.

A middleware reads `x-request-id` and `traceparent`, says the id in the answer, and writes one line to the log when the
answer is over: method, path, status and ids, and nothing of query, headers or bodies.
"""

import logging
import re
import secrets
from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwright.core.clock import Clock
from loopwright.core.origin import Origin

log = logging.getLogger("loopwright.access")

ANTHROPIC = "/v1/messages"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

_origin: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039 (frozen)


def current_origin() -> Origin:
    """That of the request in whose task this is asked."""
    return _origin.get()


def is_of_anthropic(path: str) -> bool:
    """Whether a route is one for Anthropic's clients, who have errors and a header of their own."""
    return path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")


class WithOrigin:
    """An ASGI middleware. An id that is no word of at most 128 visible characters is replaced by one of ours."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = self._read(Headers(scope=scope))
        _origin.set(origin)  # for this request's task, and those that it starts
        names = [b"x-request-id", b"request-id"] if is_of_anthropic(scope["path"]) else [b"x-request-id"]
        said = [(name, origin.request_id.encode()) for name in names]
        status = 0
        run_id = ""

        async def named_send(message: Message) -> None:
            nonlocal status, run_id
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                run_id = next((value.decode() for name, value in headers if name == b"x-run-id"), "")
                message = {**message, "headers": [*headers, *said]}
            await send(message)

        try:
            await self._app(scope, receive, named_send)
        finally:
            seconds = self._clock.now_s() - (origin.received_s or 0.0)
            told = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 6)}
            ids = {"request": origin.request_id, "run": run_id}
            log.info("%s %s %d", scope["method"], scope["path"], status, extra={"told": {**told, **ids}})

    def _read(self, headers: Headers) -> Origin:
        named = headers.get("x-request-id", "")
        return Origin(
            request_id=named if _REQUEST_ID.fullmatch(named) else secrets.token_hex(16),
            traceparent=headers.get("traceparent", "").strip().lower(),
            tracestate=headers.get("tracestate", ""),
            received_s=self._clock.now_s(),
        )
