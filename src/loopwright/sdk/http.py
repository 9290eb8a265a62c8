"""HTTP for programs, to the hosts that their permissions list. Never opens a socket.

The host makes the exchange; anything not listed is PermissionDenied.
"""

import asyncio
import json as json_module
import random
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Unpack
from urllib.parse import urlencode

from loopwright.sdk.argument_check import checked
from loopwright.sdk.errors import BadRequest, LoopwrightError, Unavailable
from loopwright.sdk.options import RequestOptions
from loopwright.sdk.port import Operation, current_port

IDEMPOTENT = frozenset(("GET", "HEAD", "PUT", "DELETE"))
DEFAULT_RETRIES = 2
MAX_RETRY_AFTER_S = 60.0  # who is asked to wait longer gets the answer instead
_RETRIED_STATUSES = frozenset((429, 502, 503, 504))


class HttpError(LoopwrightError):
    """The server answered with a status of 400 or more."""

    code = "program_error"


class Response:
    """An answer: `status`, `headers` (names in lower case), `url` (after redirects), and `body` as bytes."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.status: int = data["status"]
        self.headers: dict[str, str] = data["headers"]
        self.url: str = data["url"]
        self.body: bytes = b64decode(data["body"])

    @property
    def text(self) -> str:
        """The body in the charset that the answer names, else UTF-8; what does not fit becomes U+FFFD."""
        return _decoded(self.body, self.headers)

    def json(self) -> Any:  # noqa: ANN401 (JSON)
        return json_module.loads(self.text)

    def raise_for_status(self) -> "Response":
        """Raises HttpError for a status of 400 or more; returns itself otherwise."""
        if self.status >= 400:
            raise HttpError(f"HTTP status {self.status}: {self.text[:200]}")
        return self


class ResponseStream:
    """An answer whose body comes piece by piece: `status`, `headers`, `url`, and one way to read it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.status: int = data["status"]
        self.headers: dict[str, str] = data["headers"]
        self.url: str = data["url"]
        self._stream: int = data["stream"]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Pieces as they come, however the server cut them."""
        while True:
            piece = await current_port().issue({"op": "http_read", "stream": self._stream})
            if piece["is_end"]:
                return
            yield b64decode(piece["body"])

    async def lines(self) -> AsyncIterator[str]:
        """Lines of UTF-8 text as soon as each is whole, without their ends (LF or CR LF)."""
        rest = bytearray()
        async for piece in self.pieces():
            rest += piece
            if b"\n" in piece:
                *whole, last = rest.split(b"\n")
                rest = last
                for line in whole:
                    yield line.removesuffix(b"\r").decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    async def read(self) -> bytes:
        """What is left of the body."""
        return b"".join([piece async for piece in self.pieces()])

    def raise_for_status(self) -> "ResponseStream":
        """Raises HttpError for a status of 400 or more; returns itself otherwise."""
        if self.status >= 400:
            raise HttpError(f"HTTP status {self.status} from {self.url}")
        return self


@checked
async def request(
    method: str,
    url: str,
    *,
    params: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    json: Any = None,  # noqa: ANN401 (JSON)
    data: dict[str, Any] | str | bytes | None = None,
    timeout_s: float = 30.0,
    max_redirects: int = 0,
    retries: int | None = None,
) -> Response:
    """One request. `json` is sent as JSON, a dict as `data` as a form, a str or bytes as they are.

    It is tried again, after growing pauses or as Retry-After says, when no connection came about or the status is 429,
    502, 503 or 504: `retries` times, by default 2 for GET, HEAD, PUT and DELETE and 0 for what may happen twice if
    sent twice. Each try takes `timeout_s` at the most, and one that took so long is not repeated."""
    op = _operation("http", method, url, params, headers, json, data, timeout_s, max_redirects)
    num_left = retries if retries is not None else DEFAULT_RETRIES if method in IDEMPOTENT else 0
    num_tried = 0
    while True:
        try:
            response = Response(await current_port().issue(op))
        except Unavailable as error:
            if num_tried >= num_left or error.field == "timeout_s":
                raise
            pause_s: float | None = backoff_s(num_tried)
        else:
            if num_tried >= num_left or response.status not in _RETRIED_STATUSES:
                return response
            pause_s = retry_after_s(response.headers, time.time())
            if pause_s is not None and pause_s > MAX_RETRY_AFTER_S:
                return response
        await asyncio.sleep(pause_s if pause_s is not None else backoff_s(num_tried))
        num_tried += 1


@checked
async def get(url: str, **options: Unpack[RequestOptions]) -> Response:
    return await request("GET", url, **options)


@checked
async def get_text(url: str, **options: Unpack[RequestOptions]) -> str:
    """The body of a successful GET; HttpError for any other status."""
    return (await get(url, **options)).raise_for_status().text


@checked
async def get_json(url: str, **options: Unpack[RequestOptions]) -> Any:  # noqa: ANN401 (JSON)
    """The body of a successful GET, decoded; HttpError for any other status."""
    return (await get(url, **options)).raise_for_status().json()


@checked
async def post(url: str, **options: Unpack[RequestOptions]) -> Response:
    return await request("POST", url, **options)


@checked
@asynccontextmanager
async def stream(
    method: str,
    url: str,
    *,
    params: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    json: Any = None,  # noqa: ANN401 (JSON)
    data: dict[str, Any] | str | bytes | None = None,
    timeout_s: float = 30.0,
    max_redirects: int = 0,
) -> AsyncIterator[ResponseStream]:
    """`async with http.stream("GET", url) as answer: async for line in answer.lines(): …`. Arguments as for `request`;
    `timeout_s` is for the beginning and for each piece. The connection is closed at the end of the block. Never
    retried."""
    op = _operation("http_open", method, url, params, headers, json, data, timeout_s, max_redirects)
    answer = await current_port().issue(op)
    try:
        yield ResponseStream(answer)
    finally:
        if not current_port().is_closed:
            current_port().post({"op": "http_close", "stream": answer["stream"]})


def backoff_s(num_tried: int) -> float:
    """Half a second, doubled with each try up to 8 s, of which a random half is waited."""
    return min(0.5 * float(1 << num_tried), 8.0) * (0.5 + random.random() / 2)


def retry_after_s(headers: dict[str, str], now_s: float) -> float | None:
    """The seconds that the header Retry-After asks for, given as a number or as a date; None without a usable one."""
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - now_s, 0.0)
    except (ValueError, TypeError):
        return None


def _operation(
    op: str,
    method: str,
    url: str,
    params: dict[str, Any] | None,
    headers: dict[str, str] | None,
    json: Any,  # noqa: ANN401 (JSON)
    data: dict[str, Any] | str | bytes | None,
    timeout_s: float,
    max_redirects: int,
) -> Operation:
    if json is not None and data is not None:
        raise BadRequest("a request has json or data, not both", field="data")
    headers = {name.lower(): value for name, value in (headers or {}).items()}
    body = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else b""
    if json is not None:
        body = json_module.dumps(json).encode()
        headers.setdefault("content-type", "application/json")
    elif isinstance(data, dict):
        body = urlencode(data).encode()
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
    return {
        "op": op,
        "method": method,
        "url": url,
        "params": {name: str(value) for name, value in (params or {}).items()},
        "headers": headers,
        "timeout_s": timeout_s,
        "max_redirects": max_redirects,
        "body": b64encode(body).decode(),
    }


def _decoded(body: bytes, headers: dict[str, str]) -> str:
    _, has_charset, rest = headers.get("content-type", "").lower().partition("charset=")
    charset = rest.partition(";")[0].strip(" \"'") if has_charset else "utf-8"
    try:
        return body.decode(charset, errors="replace")
    except (LookupError, ValueError):  # a charset that is none
        return body.decode(errors="replace")
