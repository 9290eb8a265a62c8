"""Tools of the server that are HTTP exchanges: what is sent, what comes back, and what never does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from loopwright.core.errors import BadRequest, LoopwrightError, NotFound, PermissionDenied, ToolFailed, Unavailable
from loopwright.core.outside_calls import CallTool
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.tool_config import ToolsConfig
from loopwright.runtime.toolbox import ToolUse, open_toolbox

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


class Service:
    """A real HTTP service: it keeps what it was asked, and answers with `status` and the `body`."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.status = 200
        self.body: str | None = None  # None: what it was asked
        self.media_type = "text/plain"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _, has_length, rest = head.lower().partition("content-length:")
        length = int(rest.partition("\r\n")[0]) if has_length else 0
        self.asked.append(head + (await reader.readexactly(length)).decode())
        body = (self.asked[-1] if self.body is None else self.body).encode()
        writer.write(f"HTTP/1.1 {self.status} X\r\nConnection: close\r\nContent-Type: {self.media_type}\r\n".encode())
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    one = Service()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    async with server:
        one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield one


async def use(config: dict[str, Any], arguments: dict[str, Any], uses: list[ToolUse] | None = None) -> Any:
    """Calls the tool `t` that is configured so."""
    tools = msgspec.convert({"http": {"t": {"description": "A tool.", **config}}}, ToolsConfig)
    async with open_toolbox(tools) as toolbox:
        call = CallTool(name="t", arguments=arguments)
        answer = await toolbox.call(call, Permissions(tools=("t",)), (uses if uses is not None else []).append)
        return answer["result"]


def test_arguments_go_into_the_path_and_the_query_and_are_encoded() -> None:
    async def scenario() -> None:
        async with service() as one:
            config = {"url": f"{one.url}/at/{{city}}/now", "parameters": CITY}
            await use(config, {"city": "a/b?c#ü", "days": 3})
            assert one.asked[0].startswith("GET /at/a%2Fb%3Fc%23%C3%BC/now?days=3 HTTP/1.1\r\n")

    asyncio.run(scenario())


def test_what_is_posted_is_json_and_json_that_comes_back_is_data() -> None:
    async def scenario() -> None:
        async with service() as one:
            one.body, one.media_type = '{"ok": [1, 2]}', "application/json"
            config = {"url": f"{one.url}/x", "method": "POST", "parameters": CITY}
            assert await use(config, {"city": "Oslo", "days": 1}) == {"ok": [1, 2]}
            head, _, body = one.asked[0].partition("\r\n\r\n")
            assert json.loads(body) == {"city": "Oslo", "days": 1}
            assert "content-type: application/json" in head

    asyncio.run(scenario())


@pytest.mark.parametrize("city", ["", ".", ".."])
def test_an_argument_never_leads_up_the_path(city: str) -> None:
    async def scenario() -> None:
        async with service() as one:
            with pytest.raises(BadRequest) as caught:
                await use({"url": f"{one.url}/at/{{city}}/x", "parameters": CITY}, {"city": city})
            assert caught.value.field == "t.city"
            assert one.asked == []

    asyncio.run(scenario())


def test_a_secret_is_sent_and_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with service() as one:
            config = {"url": one.url, "headers": {"Authorization": "Bearer ${TOOL_KEY}"}}
            uses: list[ToolUse] = []
            answer = await use(config, {}, uses)
            assert "authorization: Bearer s3cret" in one.asked[0]
            assert "Bearer [secret]" in answer  # the service sent back what it was sent
            one.status = 500
            with pytest.raises(ToolFailed) as caught:
                await use(config, {}, uses)
            assert "status 500" in caught.value.message
            assert "s3cret" not in f"{answer}{caught.value.info()}{uses}"

    monkeypatch.setenv("TOOL_KEY", "s3cret")
    asyncio.run(scenario())


def test_each_use_is_told_with_its_outcome_and_its_arguments_cut() -> None:
    async def scenario() -> None:
        async with service() as one:
            uses: list[ToolUse] = []
            await use({"url": one.url, "parameters": CITY}, {"city": "x" * 500}, uses)
            one.status = 404
            with pytest.raises(ToolFailed):
                await use({"url": one.url, "parameters": CITY}, {"city": "x"}, uses)
            assert [(one.name, one.outcome) for one in uses] == [("t", "ok"), ("t", "program_error")]
            assert uses[0].arguments == '{"city":"' + "x" * 191 + "…"
            assert uses[1].arguments == '{"city":"x"}'

    asyncio.run(scenario())


def test_a_service_that_is_not_there_is_unavailable_and_its_address_stays_the_servers() -> None:
    async def scenario() -> None:
        async with service() as one:
            url = one.url
        with pytest.raises(Unavailable) as caught:
            await use({"url": url}, {})
        assert caught.value.message == "the tool t: it cannot be reached"

    asyncio.run(scenario())


def test_json_that_is_none_is_the_tools_failure() -> None:
    async def scenario() -> None:
        async with service() as one:
            one.media_type = "application/json"
            for one.body, said in (("{", "no JSON"), ("[" * 100_000, "no JSON"), ("1" * (5 << 20), "4 MiB")):
                with pytest.raises(ToolFailed, match=said):
                    await use({"url": one.url}, {})

    asyncio.run(scenario())


async def refusal(arguments: dict[str, Any], name: str, *permitted: str) -> tuple[LoopwrightError, int]:
    """What a call is refused with, and how often the service was asked."""
    async with service() as one:
        tools = msgspec.convert(
            {"http": {"t": {"description": "A tool.", "url": one.url, "parameters": CITY}}}, ToolsConfig
        )
        async with open_toolbox(tools) as toolbox:
            with pytest.raises(LoopwrightError) as caught:
                await toolbox.call(CallTool(name=name, arguments=arguments), Permissions(tools=permitted), print)
            return caught.value, len(one.asked)


def test_what_is_not_permitted_not_there_or_does_not_fit_never_reaches_the_service() -> None:
    error, num_asked = asyncio.run(refusal({"city": "x"}, "t"))
    assert (type(error), num_asked) == (PermissionDenied, 0)
    assert 'permissions = { tools = ["t"] }' in error.hint
    error, num_asked = asyncio.run(refusal({"city": "x"}, "u", "t"))
    assert (type(error), num_asked) == (PermissionDenied, 0)  # not NotFound: what there is, is not told either
    error, num_asked = asyncio.run(refusal({"city": "x"}, "u", "u"))
    assert (type(error), num_asked) == (NotFound, 0)
    error, num_asked = asyncio.run(refusal({"city": 1}, "t", "t"))
    assert (type(error), error.field, num_asked) == (BadRequest, "t.city", 0)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"url": "http://{city}/"}, "url"),
        ({"url": "http://a.{city}.example/"}, "url"),
        ({"url": "ftp://example.org/"}, "url"),
        ({"url": "http://example.org/{city"}, "url"),
        ({"url": "http://example.org/{days}", "parameters": CITY}, "url"),
        ({"url": "http://example.org/", "parameters": {"type": "string"}}, "parameters"),
        ({"url": "http://example.org/", "parameters": {"type": "object", "oneOf": []}}, "parameters"),
        ({"url": "http://example.org/", "headers": {"a": "${NO_SUCH_VARIABLE}"}}, "headers"),
    ],
)
def test_a_tool_that_cannot_be_honoured_is_refused_when_the_server_starts(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        asyncio.run(use(config, {}))
    assert caught.value.field == f"tools.http.t.{field}"
