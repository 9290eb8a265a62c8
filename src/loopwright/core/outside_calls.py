"""The calls that reach outside the server. Never executes one. Part of the union in `host_calls`."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from loopwright.core.call_base import HostCall


class HttpRequest(HostCall, frozen=True, kw_only=True, tag="http"):
    """One HTTP exchange with a host that the program's permissions list: {status, headers, text}.
    Redirects are not followed."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "GET"
    url: str
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 30.0


OutsideCall: TypeAlias = HttpRequest
"""Answered by the runtime's egress."""
