"""Tenants: the server says whose a request is. What one tenant's runs compute, keep, say and export is nobody else's,
and their launches take turns with those of others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from http_rig import Served, served
from starlette.requests import HTTPConnection

from loopwright.compose.config import RuntimeConfig
from loopwright.core.ids import TenantId
from loopwright.core.runs import RunSpec
from system_rig import byte_system, in_loop

HEAD = """
# /// program
# permissions = { state = ["notes"], channels = ["room"], children = ["@self"] }
# ///
import asyncio
from loopwright import *
from loopwright.sdk.resources import Queue, exported_pages
"""

KEEPS = (
    HEAD
    + """
async def main(text: str):
    ctx = Context()
    ctx.append("The same long prompt of everybody, whoever asks: ")
    turn = await ctx.generate(max_tokens=2, ignore_eos=True)
    await Store("notes").set("mine", text)
    await push("room", text)
    queue = Queue()
    await queue.forward_text(pages=[], grow_from=1000, kv_len=0, tokens=list(range(16)), positions=list(range(16)))
    await queue.export_pages("doc", [1000], positions=list(range(16)), persistent=True)
    return turn.cached_tokens
"""
)

LOOKS = (
    HEAD
    + """
async def look():
    ctx = Context()
    ctx.append("The same long prompt of everybody, whoever asks: ")
    turn = await ctx.generate(max_tokens=2, ignore_eos=True)
    try:
        async with asyncio.timeout(0.05):
            heard = await pull("room")
    except TimeoutError:
        heard = None
    return {
        "cached": turn.cached_tokens > 0,
        "note": await Store("notes").get("mine"),
        "heard": heard,
        "exports": [one["name"] for one in (await exported_pages())["exports"]],
    }
async def main(in_child: bool):
    return await (await spawn(look)).wait() if in_child else await look()
"""
)

CLEANS_UP = (
    HEAD
    + """
async def main():
    await Queue().unexport_pages("doc")
"""
)

NOTHING = {"cached": False, "note": None, "heard": None, "exports": []}
ALL = {"cached": True, "note": "a's own", "heard": "a's own", "exports": ["doc"]}


def of_header(connection: HTTPConnection) -> TenantId:
    """An identity for tests: what a header says. A server of keys would look one up."""
    return TenantId(connection.headers.get("x-test-tenant", ""))


@asynccontextmanager
async def server() -> AsyncIterator[Served]:
    async with byte_system(runtime=RuntimeConfig()) as system, served(system, tenant_of=of_header) as client:
        yield client


async def run(client: Served, tenant: str, source: str, **arguments: Any) -> Any:
    body = {"source": source, "arguments": arguments, "stream": False}
    answer = await client.http.post("/v1/runs", json=body, headers={"x-test-tenant": tenant})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


@pytest.mark.wasm
@pytest.mark.parametrize("in_child", [False, True])
def test_what_a_tenants_runs_leave_is_found_by_its_own_runs_alone(in_child: bool) -> None:
    async def scenario() -> None:
        async with server() as client:
            assert await run(client, "a", KEEPS, text="a's own") == 0
            for other in ("b", ""):
                assert await run(client, other, LOOKS, in_child=in_child) == NOTHING
            assert await run(client, "a", LOOKS, in_child=in_child) == ALL
            await run(client, "a", CLEANS_UP)

    in_loop(scenario)


@pytest.mark.wasm
def test_no_route_and_no_body_lets_a_client_say_whose_it_is() -> None:
    async def scenario() -> None:
        async with server() as client:
            source = "async def main():\n    return 1\n"
            for path, body in {
                "/v1/runs": {"source": source, "tenant": "b"},
                "/v1/programs/x/runs": {"tenant": "b"},
            }.items():
                answer = await client.http.post(path, json=body)
                assert answer.status_code == 400, answer.text
                assert "tenant" in answer.json()["error"]["message"]

    in_loop(scenario)


@pytest.mark.wasm
def test_a_chat_of_another_tenant_finds_nothing_cached() -> None:
    content = "A question that is long enough to fill some pages of KV, so that a hit would be seen."

    async def scenario() -> None:
        async with server() as client:

            async def prefilled(tenant: str) -> int:
                before = (await client.system.controller.stats()).num_prefill_tokens
                options: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
                headers = {"x-test-tenant": tenant}
                await client.openai.chat.completions.create(model=client.model, extra_headers=headers, **options)
                return (await client.system.controller.stats()).num_prefill_tokens - before

            first = await prefilled("a")
            assert await prefilled("b") == first
            assert await prefilled("a") < first / 2

    in_loop(scenario)


@pytest.mark.wasm
def test_a_burst_of_one_tenant_does_not_hold_up_the_launch_of_another() -> None:
    source = "async def main():\n    return 1\n"

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system:
            order: list[str] = []

            async def ended(run_id: Any, tenant: str) -> None:
                async for _ in system.launcher.events(run_id):
                    pass
                order.append(tenant)

            tenants = [*"a" * 40, *"b" * 3]
            ids = [await system.launcher.start(RunSpec(source=source, tenant=TenantId(one))) for one in tenants]
            await asyncio.gather(*map(ended, ids, tenants))
            assert max(place for place, one in enumerate(order) if one == "b") < 20
            assert sorted(order) == tenants

    in_loop(scenario)


@pytest.mark.wasm
def test_a_run_is_not_there_for_another_tenant() -> None:
    source = "from loopwright import *\nasync def main():\n    emit_text('a secret')\n    return await receive()\n"

    async def scenario() -> None:
        async with server() as client:

            async def ask(tenant: str, method: str, path: str, body: Any = None) -> httpx.Response:
                return await client.http.request(method, path, json=body, headers={"x-test-tenant": tenant})

            async def runs(tenant: str) -> list[str]:
                return [one["run"] for one in (await ask(tenant, "GET", "/v1/runs")).json()["runs"]]

            body = {"source": source}
            headers = {"x-test-tenant": "a"}
            async with client.http.stream("POST", "/v1/runs?detach=true", json=body, headers=headers) as begun:
                run_id = begun.headers["x-run-id"]
            path = f"/v1/runs/{run_id}"
            assert await runs("a") == [run_id]
            for other in ("b", ""):
                assert await runs(other) == []
                for method, end, body in [
                    ("GET", "/events", None),
                    ("POST", "/messages", {"message": "forged"}),
                    ("POST", "/cancel", None),
                    ("DELETE", "", None),
                ]:
                    answer = await ask(other, method, path + end, body)
                    none = await ask(other, method, "/v1/runs/none" + end, body)
                    assert (answer.status_code, none.status_code) == (404, 404), answer.text
                    assert answer.json()["error"]["message"] == none.json()["error"]["message"].replace("none", run_id)
            assert (await ask("a", "POST", f"{path}/messages", {"message": "mine"})).status_code == 202
            told = (await ask("a", "GET", f"{path}/events")).text
            assert "a secret" in told
            assert '"mine"' in told

    in_loop(scenario)


@pytest.mark.wasm
def test_a_program_is_there_for_all_tenants_and_replaced_and_removed_by_its_own_alone() -> None:
    async def scenario() -> None:
        async with server() as client:

            async def ask(tenant: str, path: str, body: Any, method: str = "POST") -> httpx.Response:
                return await client.http.request(method, path, json=body, headers={"x-test-tenant": tenant})

            first, second = ({"name": "agent", "source": f"async def main(): return {n}\n"} for n in (1, 2))
            assert (await ask("a", "/v1/programs", first)).status_code == 200
            refused = await ask("b", "/v1/programs", second)
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "name")
            for expected in (1, 2):
                answer = await ask("b", "/v1/programs/agent/runs", {"stream": False})
                assert answer.json()["result"] == expected
                assert (await ask("a", "/v1/programs", second)).status_code == 200
            for tenant, shown in (("a", "a"), ("b", "another tenant")):
                listed = (await ask(tenant, "/v1/programs", None, "GET")).json()["programs"]
                assert [(one["name"], one["deployed_by"]) for one in listed] == [("agent", shown)]
            refused = await ask("b", "/v1/programs/agent", None, "DELETE")
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "name")
            assert (await ask("a", "/v1/programs/agent", None, "DELETE")).status_code == 200
            assert (await ask("b", "/v1/programs", second)).status_code == 200  # the name is free

    in_loop(scenario)


@pytest.mark.wasm
def test_a_run_goes_on_with_its_program_when_that_is_removed_and_so_do_its_children() -> None:
    source = """
# /// program
# permissions = { children = ["@self"] }
# ///
from loopwright import receive, spawn

async def late():
    return "born late"

async def main():
    await receive()
    return await (await spawn(late)).wait()
"""

    async def scenario() -> None:
        async with server() as client:
            body = {"name": "agent", "source": source}
            (await client.http.post("/v1/programs", json=body)).raise_for_status()
            async with client.http.stream("POST", "/v1/programs/agent/runs?detach=true", json={}) as begun:
                run_id = begun.headers["x-run-id"]
            assert (await client.http.delete("/v1/programs/agent")).status_code == 200
            assert (await client.http.post("/v1/programs/agent/runs", json={})).status_code == 404
            chat = {"model": "program:agent", "messages": [{"role": "user", "content": "x"}]}
            assert (await client.http.post("/v1/chat/completions", json=chat)).status_code == 404
            await client.http.post(f"/v1/runs/{run_id}/messages", json={"message": "go"})
            told = (await client.http.get(f"/v1/runs/{run_id}/events")).text
            assert '"result":"born late"' in told, told

    in_loop(scenario)
