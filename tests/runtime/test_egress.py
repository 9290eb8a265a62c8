"""The way out for programs' HTTP."""

import asyncio

import pytest

from loopwright.core.errors import PermissionDenied
from loopwright.core.outside_calls import HttpRequest
from loopwright.runtime import egress
from loopwright.runtime.egress import Egress
from loopwright.runtime.http_client import HttpClient
from loopwright.runtime.permissions import Permissions


def test_a_client_that_could_not_be_made_is_made_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError("too many open files")]

    def make() -> HttpClient:
        if failures:
            raise failures.pop()
        return HttpClient()

    async def scenario() -> None:
        way_out, call = Egress(), HttpRequest(method="GET", url="http://example.org/")
        with pytest.raises(OSError, match="too many open files"):
            await way_out.request(call, Permissions())
        with pytest.raises(PermissionDenied):
            await way_out.request(call, Permissions())
        await way_out.close()

    monkeypatch.setattr(egress, "_make_client", make)
    asyncio.run(scenario())


def test_a_client_that_could_not_be_made_does_not_fail_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> HttpClient:
        raise OSError("too many open files")

    async def scenario() -> None:
        way_out = Egress()
        with pytest.raises(OSError, match="too many open files"):
            await way_out.request(HttpRequest(method="GET", url="http://example.org/"), Permissions())
        await way_out.close()

    monkeypatch.setattr(egress, "_make_client", make)
    asyncio.run(scenario())
