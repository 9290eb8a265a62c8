"""What an HTTP exchange says to whom, checked before anything is sent. Never sends it. Used by the HTTP client.

What frames a message is the client's to say: a program cannot name another host than the one that was checked, nor
another length than its body has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import httpx

from loopwright.core.errors import BadRequest
from loopwright.core.outside_calls import HttpExchange
from loopwright.runtime.addresses import canonical_host

MAX_PORT = 65535
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset((
    "connection", "expect", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
))  # fmt: skip
_FOR_ONE_ORIGIN = ("authorization", "cookie", "host")
_FOR_A_BODY = ("content-length", "content-type", "content-encoding")


@dataclass(frozen=True, slots=True)
class Head:
    """One hop. `host` is canonical, `target` the path and query, `headers` complete and in lower case."""

    method: str
    scheme: str
    host: str
    port: int
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def url(self) -> str:
        return f"{self.scheme}://{_authority(self)}{self.target}"


def read_head(call: HttpExchange) -> Head:
    """Raises BadRequest, its field url or headers.NAME."""
    scheme, host, port, target = _read_url(call.url, call.params)
    head = Head(call.method, scheme, host, port, target, {}, call.body)
    headers = {"host": _authority(head), "accept": "*/*", "accept-encoding": "identity", "user-agent": "loopwright"}
    if call.body or call.method in ("POST", "PUT", "PATCH"):
        headers["content-length"] = str(len(call.body))
    for given, value in call.headers.items():
        name = given.lower()
        _check_header(name, value, headers)
        headers[name] = value.strip(" \t")
    return replace(head, headers=headers)


def redirected(head: Head, status: int, raw_headers: Mapping[bytes, bytes]) -> Head | None:
    """The next hop when the answer redirects; None when it does not. Raises BadRequest for a URL that is none."""
    headers = {name.lower(): value for name, value in raw_headers.items()}
    if status not in (301, 302, 303, 307, 308) or b"location" not in headers:
        return None
    location = headers[b"location"].decode("latin-1")
    try:
        joined = str(httpx.URL(head.url).join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise BadRequest(f"{head.url} redirects to {location[:200]!r}: {error}", field="url") from None
    scheme, host, port, target = _read_url(joined, {})
    becomes_get = status == 303 or (status in (301, 302) and head.method == "POST")
    is_same_origin = (scheme, host, port) == (head.scheme, head.host, head.port)
    dropped = [*(() if is_same_origin else _FOR_ONE_ORIGIN), *(_FOR_A_BODY if becomes_get else ())]
    follow = Head(
        method="GET" if becomes_get and head.method != "HEAD" else head.method,
        scheme=scheme,
        host=host,
        port=port,
        target=target,
        headers={name: value for name, value in head.headers.items() if name not in dropped},
        body=b"" if becomes_get else head.body,
    )
    return replace(follow, headers={**follow.headers, "host": _authority(follow)})


def _read_url(text: str, params: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Scheme, canonical host, port, target."""
    try:
        url = httpx.URL(text)
        url = url.copy_merge_params(params) if params else url
        host = canonical_host(url.raw_host.decode("ascii"))
    except (httpx.InvalidURL, ValueError) as error:
        raise BadRequest(f"{text[:200]!r} is not a URL: {error}", field="url") from None
    if url.scheme not in _PORTS:
        raise BadRequest(f"{text[:200]!r} is not an http or https URL", field="url")
    if url.userinfo:
        raise BadRequest("the URL holds credentials", field="url", hint="send them in the header authorization")
    port = url.port if url.port is not None else _PORTS[url.scheme]
    if not 0 < port <= MAX_PORT:
        raise BadRequest(f"{text[:200]!r} is not a URL: there is no port {port}", field="url")
    return url.scheme, host, port, url.raw_path.decode("ascii")


def _authority(head: Head) -> str:
    host = f"[{head.host}]" if ":" in head.host else head.host
    return host if head.port == _PORTS[head.scheme] else f"{host}:{head.port}"


def _check_header(name: str, value: str, headers: Mapping[str, str]) -> None:
    """`headers` are ours."""
    field = f"headers.{name}"
    if not _NAME.fullmatch(name):
        raise BadRequest(f"{name[:100]!r} is no name of a header", field="headers")
    if not _VALUE.fullmatch(value):
        raise BadRequest(f"the header {name} holds a character that no header can: {value[:100]!r}", field=field)
    if name in _OURS:
        raise BadRequest(f"the header {name} is not for programs to set", field=field)
    if name == "host" and value.lower() != headers["host"]:
        raise BadRequest(f"the header host is {value[:100]!r}; the URL's host is {headers['host']!r}", field=field)
    if name == "content-length" and value.strip() != headers.get(name, "0"):
        raise BadRequest(
            f"the header content-length is {value[:100]!r}; the body has {headers.get(name, '0')} bytes", field=field
        )
