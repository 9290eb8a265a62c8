"""The calls that reach outside the server. Never executes one. Part of the union in `host_calls`."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, field

from loopwright.core.call_base import HostCall


class HttpExchange(HostCall, frozen=True, kw_only=True):
    """What is asked of a host that the program's permissions list. Redirects are followed up to `max_redirects`, each
    checked as the first URL was."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "GET"
    url: str
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    max_redirects: Annotated[int, Meta(ge=0, le=20)] = 0
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 30.0


class HttpRequest(HttpExchange, frozen=True, kw_only=True, tag="http"):
    """One HTTP exchange with a host that the program's permissions list: {status, headers, url, body}. All of it takes
    `timeout_s` at the most."""


class HttpOpen(HttpExchange, frozen=True, kw_only=True, tag="http_open"):
    """Begins an HTTP exchange whose body is read piece by piece: {stream, status, headers, url}. `timeout_s` is for
    this and for each read."""


class HttpRead(HostCall, frozen=True, kw_only=True, tag="http_read"):
    """The next piece of a stream's body as soon as there is one: {body, is_end}. One read at a time."""

    stream: int


class HttpClose(HostCall, frozen=True, kw_only=True, tag="http_close"):
    """Ends a stream, also in the middle. Done."""

    stream: int


class ListTools(HostCall, frozen=True, kw_only=True, tag="list_tools"):
    """The server's tools that the program's permissions list: {tools}, each {name, description, parameters}."""


class CallTool(HostCall, frozen=True, kw_only=True, tag="call_tool"):
    """Executes a tool of the server that the program's permissions list: {result}."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


OutsideCall: TypeAlias = HttpRequest | HttpOpen | HttpRead | HttpClose | ListTools | CallTool
"""Answered by the runtime's egress and by its tools."""
