"""A program's HTTP exchanges. Never decides what is permitted: it asks Permissions before every exchange.

Called by the egress. Redirects are handed to the program, which must be permitted to follow them.
"""

from typing import Any

import httpx

from loopwright.core.errors import BadRequest, LimitExceeded, Unavailable
from loopwright.core.outside_calls import HttpRequest
from loopwright.runtime.permissions import Permissions

MAX_BODY_BYTES = 4 << 20
MAX_PORT = 65535


class HttpClient:
    """A shared client without cookies, proxies or redirects."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=32)
        self._client = httpx.AsyncClient(follow_redirects=False, trust_env=False, limits=limits)

    async def request(self, call: HttpRequest, permissions: Permissions) -> dict[str, Any]:
        """{status, headers, text}. Raises PermissionDenied, BadRequest (URL), LimitExceeded (body), Unavailable."""
        url = _permitted_url(call.url, permissions)
        url = url.copy_merge_params(call.params) if call.params else url
        content = call.body.encode() if call.body is not None else None
        try:
            request = self._client.build_request(
                call.method, url, headers=call.headers, content=content, timeout=call.timeout_s
            )
            response = await self._client.send(request, stream=True)
            try:
                body = await _read(response, call.url)
            finally:
                await response.aclose()
        except httpx.TimeoutException:
            raise Unavailable(f"{call.method} {call.url}: no answer in {call.timeout_s} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError) as error:
            raise Unavailable(f"{call.method} {call.url}: {error or type(error).__name__}") from None
        text = body.decode(response.encoding or "utf-8", errors="replace")
        return {"status": response.status_code, "headers": dict(response.headers), "text": text}

    async def close(self) -> None:
        await self._client.aclose()


def _permitted_url(text: str, permissions: Permissions) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise BadRequest(f"{text[:200]!r} is not a URL: {error}", field="url") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BadRequest(f"{text[:200]!r} is not an http or https URL", field="url")
    port = url.port if url.port is not None else 443 if url.scheme == "https" else 80
    if not 0 < port <= MAX_PORT:
        raise BadRequest(f"{text[:200]!r} is not a URL: there is no port {port}", field="url")
    permissions.check_http(url.host, port)
    return url


async def _read(response: httpx.Response, url: str) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise LimitExceeded(f"{url}: the body is longer than {MAX_BODY_BYTES} bytes")
    return bytes(body)
