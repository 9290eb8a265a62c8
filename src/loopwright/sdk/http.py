"""HTTP for programs: one exchange at a time, to the hosts that the program's permissions list. Never opens a socket.

The host makes the request; anything not listed is PermissionDenied.
"""

import json as json_module
from typing import Any, Unpack
from urllib.parse import urlencode

from loopwright.sdk.errors import LoopwrightError
from loopwright.sdk.options import RequestOptions
from loopwright.sdk.port import current_port


class HttpError(LoopwrightError):
    """The server answered with a status of 400 or more."""

    code = "program_error"


class Response:
    """An answer: `status`, `headers` (names in lower case) and `text`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.status: int = data["status"]
        self.headers: dict[str, str] = data["headers"]
        self.text: str = data["text"]

    def json(self) -> Any:  # noqa: ANN401 (JSON)
        return json_module.loads(self.text)

    def raise_for_status(self) -> "Response":
        """Raises HttpError for a status of 400 or more; returns itself otherwise."""
        if self.status >= 400:
            raise HttpError(f"HTTP status {self.status}: {self.text[:200]}")
        return self


async def request(
    method: str,
    url: str,
    *,
    params: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    json: Any = None,  # noqa: ANN401 (JSON)
    data: dict[str, Any] | str | None = None,
    timeout_s: float = 30.0,
) -> Response:
    """One request. `json` is sent as JSON, a dict as `data` as a form, a str as it is. Redirects are not followed."""
    headers = dict(headers or {})
    body = data if isinstance(data, str) else None
    if json is not None:
        body = json_module.dumps(json)
        headers.setdefault("content-type", "application/json")
    elif isinstance(data, dict):
        body = urlencode(data)
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
    op = {"op": "http", "method": method, "url": url, "headers": headers, "timeout_s": timeout_s}
    op["params"] = {name: str(value) for name, value in (params or {}).items()}
    if body is not None:
        op["body"] = body
    return Response(await current_port().issue(op))


async def get(url: str, **options: Unpack[RequestOptions]) -> Response:
    return await request("GET", url, **options)


async def get_text(url: str, **options: Unpack[RequestOptions]) -> str:
    """The body of a successful GET; HttpError for any other status."""
    return (await get(url, **options)).raise_for_status().text


async def get_json(url: str, **options: Unpack[RequestOptions]) -> Any:  # noqa: ANN401 (JSON)
    """The body of a successful GET, decoded; HttpError for any other status."""
    return (await get(url, **options)).raise_for_status().json()


async def post(url: str, **options: Unpack[RequestOptions]) -> Response:
    return await request("POST", url, **options)
