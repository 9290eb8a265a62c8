"""Ends the requests that a stopping server cancels, with an error that their clients can read. Never cancels any.

Without it they would end as faults do: a traceback in the log for each, and a connection that breaks off. Used by app.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopwright.core.errors import Unavailable
from loopwright.server.errors import error_response
from loopwright.server.sse import LAST_WORDS


class EndsWhenStopped:
    """An ASGI middleware: an answer that has not begun is a 503; one that streams events has the error as its last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Message | None = None

        async def watched_send(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = message
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except asyncio.CancelledError:  # only who stops the server cancels a request
            error = Unavailable("the server is stopping", hint="send the request again")
            if begun is None:
                await error_response(error, scope["path"])(scope, receive, send)
            elif (last_words := scope.get(LAST_WORDS)) is not None:
                last = last_words(error)
                await send({"type": "http.response.body", "body": last, "more_body": False})
            else:
                raise
