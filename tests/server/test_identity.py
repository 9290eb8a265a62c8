"""A server with keys: whose request it is follows from its key, and one without is answered with 401 on every route."""

import asyncio

import httpx
import pytest
from fake_runs import FakeRun, FakeRuns
from starlette.routing import Route

from loopwright.core.errors import PermissionDenied
from loopwright.core.ids import TenantId
from loopwright.server.app import create_app
from loopwright.server.identity import TenantOf, by_key

TENANTS = {"key of ann": TenantId("ann"), "key of bob": TenantId("bob")}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


def fake_runs() -> FakeRuns:
    def answer(run: FakeRun) -> None:
        run.text("text")
        run.finish({"tokens": [1]})

    return FakeRuns(answer)


async def asked(
    path: str, tenant_of: TenantOf, runs: FakeRuns | None = None, method: str = "GET", **options: object
) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(runs or fake_runs(), tenant_of=tenant_of))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, path, **options)  # type: ignore[arg-type]


def test_every_route_but_health_asks_for_a_key() -> None:
    async def scenario() -> None:
        routes = [one for one in create_app(fake_runs()).routes if isinstance(one, Route)]
        assert len(routes) > 15
        for route in routes:
            for method in (route.methods or set()) - {"HEAD"}:
                path = route.path.replace(":path", "")
                answer = await asked(path, by_key(TENANTS), method=method)
                assert (answer.status_code == 401) == (path != "/health"), (method, path)
        missing = await asked("/none", by_key(TENANTS))
        assert missing.status_code == 401
        assert missing.headers["x-should-retry"] == "false"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"authorization": "Bearer key of ann"}, "ann"),
        ({"authorization": "bearer  key of bob"}, "bob"),
        ({"x-api-key": "key of bob"}, "bob"),
        ({"authorization": "Bearer key of an"}, None),
        ({"authorization": "Basic key of ann"}, None),
        ({"authorization": "key of ann"}, None),
        ({"authorization": "Bearer key of ann", "x-api-key": "key of an"}, None),
        ({"authorization": "Bearer "}, None),
        ({"x-api-key": ""}, None),
        ({}, None),
    ],
)
def test_a_run_belongs_to_whose_key_it_was_asked_with(headers: dict[str, str], tenant: str | None) -> None:
    async def scenario() -> None:
        runs = fake_runs()
        answer = await asked("/v1/chat/completions", by_key(TENANTS), runs, "POST", json=CHAT, headers=headers)
        assert answer.status_code == (401 if tenant is None else 200), answer.text
        assert [run.spec.tenant for run in runs.started] == ([] if tenant is None else [tenant])
        if tenant is None:
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert not any(key in answer.text for key in TENANTS)

    asyncio.run(scenario())


def test_what_whoever_identifies_raises_is_the_answer() -> None:
    def nobody(connection: object) -> TenantId:
        raise PermissionDenied("not from there")

    answer = asyncio.run(asked("/v1/models", nobody))
    assert (answer.status_code, answer.json()["error"]["message"]) == (403, "not from there")
