"""What programs reach outside: HTTP with streams and retries, and the server's tools, of which some are a real MCP
server's. Whatever is open ends when its program stops waiting, which is counted at the other side."""

import asyncio
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

import mcp_calendar
from loopwright.core.errors import BadRequest
from loopwright.core.events import Emit, ToolCall
from loopwright.runtime.tool_config import ToolsConfig
from loopwright.runtime.toolbox import open_toolbox
from system_rig import Outcome, System, byte_system, in_loop, until

pytestmark = pytest.mark.wasm

HTTP = '# /// program\n# permissions = { http = ["127.0.0.1:*"] }\n# ///\n'
TOOLS = '# /// program\n# permissions = { tools = ["cal.*"] }\n# ///\n'


class Server:
    """A real HTTP server whose answers a test writes; it notes who came and who hung up before the end."""

    def __init__(self, *answers: bytes) -> None:
        self.port = 0
        self.asked: list[bytes] = []
        self.num_hung_up = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        answer = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.writers.append(writer)
        self.asked.append(head)
        writer.write(answer)
        try:
            while await reader.read(4096):
                pass
        except ConnectionError:
            pass
        self.num_hung_up += 1
        writer.close()


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[Server]:
    one = Server(*answers)
    listening = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    async with listening:
        one.port = listening.sockets[0].getsockname()[1]
        yield one


def reply(body: bytes = b"", status: int = 200, *headers: bytes) -> bytes:
    extra = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d X\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s" % (status, extra, len(body), body)


async def run(source: str, **arguments: Any) -> Outcome:
    async with byte_system() as system:
        return await system.run(source, "wasm", **arguments)


def test_text_json_and_bytes_arrive_as_they_were_sent() -> None:
    source = (
        HTTP
        + """
from loopwright import http
async def main(port: int):
    url = f"http://127.0.0.1:{port}/"
    first = await http.get(url, params={"q": "a b"})
    second = await http.post(url, data=bytes(range(256)))
    return [first.text, first.headers["x-a"], list(second.body) == list(range(256)), second.url == url]
"""
    )

    async def scenario() -> None:
        text = reply("é".encode("latin-1"), 200, b"Content-Type: text/plain; charset=latin-1", b"X-A: 1", b"X-A: 2")
        async with server(text, reply(bytes(range(256)))) as one:
            assert (await run(source, port=one.port)).result == ["é", "1, 2", True, True]
            assert one.asked[0].startswith(b"GET /?q=a+b ")
            assert b"content-length: 256\r\n" in one.asked[1].lower()

    in_loop(scenario)


def test_lines_of_a_stream_come_while_it_is_open_and_it_ends_with_its_block() -> None:
    source = (
        HTTP
        + """
from loopwright import emit, http
async def main(port: int):
    seen = []
    async with http.stream("GET", f"http://127.0.0.1:{port}/") as answer:
        async for line in answer.lines():
            emit(line)
            seen.append(line)
            if line == "data: enough":
                break
    return seen
"""
    )

    async def scenario() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with server(head) as one, byte_system() as system:
            running = await system.start(source, "wasm", port=one.port)
            events = system.launcher.events(running.run_id)
            await anext(events)  # started
            await until(lambda: bool(one.writers))
            for piece in (b"data: \xc3", b"\xa9\r\ndata: 2\n", b"data: enough\nrest"):
                one.writers[0].write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if piece.endswith(b"\xa9\r\ndata: 2\n"):  # two lines are there, and the stream stays open
                    assert [(await anext(events)).value for _ in range(2)] == ["data: é", "data: 2"]  # type: ignore[union-attr]
            assert (await running.outcome()).result == ["data: é", "data: 2", "data: enough"]
            await until(lambda: one.num_hung_up == 1)

    in_loop(scenario)


def test_a_reader_that_waits_with_a_timeout_goes_on_where_it_was() -> None:
    source = (
        HTTP
        + """
import asyncio
from loopwright import emit, http
async def main(port: int):
    async with http.stream("GET", f"http://127.0.0.1:{port}/") as answer:
        pieces = answer.pieces()
        try:
            await asyncio.wait_for(anext(pieces), 0.01)
        except TimeoutError:
            emit("late")
        return (await answer.read()).decode()
"""
    )

    async def scenario() -> None:
        async with server(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n") as one, byte_system() as system:
            running = await system.start(source, "wasm", port=one.port)
            events = system.launcher.events(running.run_id)
            await anext(events)
            assert (await anext(events)).value == "late"  # type: ignore[union-attr]
            one.writers[0].write(b"abc")
            assert (await running.outcome()).result == "abc"

    in_loop(scenario)


@pytest.mark.parametrize(
    ("call", "num_asked", "result"),
    [
        ("http.get(url)", 3, 200),
        ("http.get(url, retries=1)", 2, 503),
        ("http.get(url, retries=0)", 1, 503),
        ("http.post(url)", 1, 503),
        ("http.post(url, retries=5)", 3, 200),
    ],
)
def test_only_what_may_be_sent_twice_is_retried_unless_asked_for(call: str, num_asked: int, result: int) -> None:
    source = (
        HTTP
        + f"""
from loopwright import http
async def main(port: int):
    url = f"http://127.0.0.1:{{port}}/"
    return (await {call}).status
"""
    )

    async def scenario() -> None:
        busy = reply(b"", 503, b"Retry-After: 0")
        async with server(busy, busy, reply(b"ok")) as one:
            assert (await run(source, port=one.port)).result == result
            assert len(one.asked) == num_asked

    in_loop(scenario)


def test_who_asks_to_wait_too_long_gets_its_answer_passed_on() -> None:
    source = (
        HTTP
        + """
from loopwright import http
async def main(port: int):
    return (await http.get(f"http://127.0.0.1:{port}/")).status
"""
    )

    async def scenario() -> None:
        async with server(reply(b"", 429, b"Retry-After: 3600")) as one:
            assert (await run(source, port=one.port)).result == 429

    in_loop(scenario)


def test_a_wrong_header_is_the_programs_fault_and_named() -> None:
    source = (
        HTTP
        + """
from loopwright import http
async def main(port: int):
    await http.post(f"http://127.0.0.1:{port}/", data="abc", headers={"Content-Length": "12"})
"""
    )

    async def scenario() -> None:
        async with server(reply()) as one:
            error = (await run(source, port=one.port)).final.error
            assert error is not None
            assert (error.type, error.code, error.field) == ("BadRequest", "bad_request", "headers.content-length")
            assert "'12'; the body has 3 bytes" in error.message
            assert one.asked == []

    in_loop(scenario)


@pytest.mark.parametrize("how", ["http.get", "stream"])
def test_a_host_that_is_not_listed_is_never_dialled(how: str) -> None:
    doing = "await http.get(url)" if how == "http.get" else "await http.stream('GET', url).__aenter__()"
    source = f"""
from loopwright import http
async def main(port: int):
    url = f"http://127.0.0.1:{{port}}/"
    {doing}
"""

    async def scenario() -> None:
        async with server(reply()) as one:
            final = (await run(source, port=one.port)).final
            assert final.code == "denied"
            assert final.error is not None
            assert f'permissions = {{ http = ["127.0.0.1:{one.port}"] }}' in final.error.hint
            assert one.asked == []

    in_loop(scenario)


GIVES_UP = (
    HTTP
    + """
import asyncio
from loopwright import http
async def stream(url):
    async with http.stream("GET", url) as answer:
        await answer.read()
async def main(port: int, gate: int, gives_up: bool):
    url = f"http://127.0.0.1:{port}/"
    work = [asyncio.create_task(one) for one in (http.get(url), stream(url))]
    await http.get(f"http://127.0.0.1:{gate}/")
    if gives_up:
        for one in work:
            one.cancel()
        await asyncio.wait(work)
    await asyncio.sleep(1000)
"""
)


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_is_open_ends_when_its_program_gives_up_and_when_the_run_is_cancelled(gives_up: bool) -> None:
    async def scenario() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
        async with server(head) as one, server(b"") as gate, byte_system() as system:
            running = await system.start(GIVES_UP, "wasm", port=one.port, gate=gate.port, gives_up=gives_up)
            await until(lambda: len(one.asked) == 2 and len(gate.asked) == 1)
            gate.writers[0].write(reply())
            if not gives_up:
                await system.launcher.cancel(running.run_id)
            await until(lambda: one.num_hung_up == 2)
            await system.launcher.cancel(running.run_id)
            assert (await running.outcome()).final.code == "cancelled"

    in_loop(scenario)


# Tools of an MCP server


@asynccontextmanager
async def over_http(asked: list[str]) -> AsyncIterator[dict[str, Any]]:
    listening = socket.create_server(("127.0.0.1", 0))
    serving = uvicorn.Server(uvicorn.Config(mcp_calendar.calendar(asked).streamable_http_app(), log_level="critical"))
    task = asyncio.create_task(serving.serve(sockets=[listening]))
    try:
        await until(lambda: serving.started)
        yield {"url": f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"}
    finally:
        serving.should_exit = serving.force_exit = True
        await task


@asynccontextmanager
async def with_calendar(kind: str, log: Path) -> AsyncIterator[System]:
    """A system whose tools `cal.*` are the calendar's; what it is asked is in the file."""
    log.touch()  # noqa: ASYNC240 (a test's own small file)
    if kind == "stdio":
        command = [sys.executable, mcp_calendar.__file__]
        tools = {"mcp": {"cal": {"command": command, "env": {"LOG": str(log), "CALENDAR_KEY": "${TEST_KEY}"}}}}
        async with byte_system(tools=msgspec.convert(tools, ToolsConfig)) as system:
            yield system
        return
    async with over_http([]) as server_config:
        tools = {"mcp": {"cal": server_config}}
        async with byte_system(tools=msgspec.convert(tools, ToolsConfig)) as system:
            yield system


USES_CALENDAR = (
    TOOLS
    + """
from loopwright import ToolFailed, tools
async def main():
    found = {tool.name: tool for tool in await tools.list()}
    added = await tools.call("cal.add", day="Monday", what="tea")
    number = await found["cal.count"](day="Monday")
    wrong = []
    try:
        await found["cal.add"](day=1)
    except Exception as error:
        wrong.append([type(error).__name__, error.field])
    try:
        await tools.call("cal.fail")
    except ToolFailed as error:
        wrong.append([type(error).__name__, error.message])
    add = found["cal.add"]
    return [sorted(found), add.description, sorted(add.parameters["properties"]), added, number, wrong]
"""
)


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_a_program_uses_the_tools_of_an_mcp_server(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with with_calendar(kind, tmp_path / "log") as system:
            outcome = await system.run(USES_CALENDAR, "wasm")
            names, description, parameters, added, number, wrong = outcome.result
            assert names == [f"cal.{name}" for name in ("add", "count", "die", "fail", "flood", "lie", "wait")]
            assert description == "Adds an appointment."
            assert parameters == ["day", "hours", "what"]
            assert added == {"day": "Monday", "what": "tea", "hours": 1}
            assert number == 6
            assert wrong[0] == ["BadRequest", "cal.add.what"] or wrong[0] == ["BadRequest", "cal.add.day"]
            assert wrong[1][0] == "ToolFailed"
            assert "s3cret" not in wrong[1][1]
            used = [event for event in outcome.events if isinstance(event, ToolCall)]
            assert [(event.name, event.outcome) for event in used] == [
                ("cal.add", "ok"), ("cal.count", "ok"), ("cal.fail", "program_error"),
            ]  # fmt: skip
            assert used[0].arguments == '{"day":"Monday","what":"tea"}'

    monkeypatch.setenv("TEST_KEY", "s3cret")
    in_loop(scenario)


WAITS = (
    TOOLS
    + """
import asyncio
from loopwright import tools
async def main(gives_up: bool):
    task = asyncio.create_task(tools.call("cal.wait"))
    await asyncio.sleep(0)
    if gives_up:
        await tools.call("cal.add", day="now", what="")  # by then the other has begun
        task.cancel()
    await asyncio.sleep(1000)
"""
)


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_tool_of_an_mcp_server_is_cancelled_there_when_its_program_goes(
    gives_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        log = tmp_path / "log"
        async with with_calendar("stdio", log) as system:
            running = await system.start(WAITS, "wasm", gives_up=gives_up)
            await until(lambda: "wait begun" in log.read_text())
            if not gives_up:
                await system.launcher.cancel(running.run_id)
            await until(lambda: "wait given up" in log.read_text())
            await system.launcher.cancel(running.run_id)
            await running.outcome()

    monkeypatch.setenv("TEST_KEY", "x")
    in_loop(scenario)


LIED_TO = (
    TOOLS
    + """
import asyncio
from loopwright import ToolFailed, tools
async def main():
    waiting = asyncio.create_task(tools.call("cal.wait"))
    await tools.call("cal.add", day="now", what="")  # by then the other has begun
    failed = []
    for name in ("cal.lie", "cal.flood"):
        try:
            await tools.call(name)
        except ToolFailed as error:
            failed.append(error.message)
    return [failed, await tools.call("cal.count", day="Monday"), waiting.done()]
"""
)


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_an_mcp_server_that_lies_or_floods_fails_that_call_and_no_other(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with with_calendar(kind, tmp_path / "log") as system:
            (lied, flooded), number, is_over = (await system.run(LIED_TO)).result
            assert "the tool cal.lie" in lied
            assert re.search(r"answered with 52\d{5} bytes; the limit is 4194304", flooded)
            assert (number, is_over) == (6, False)

    monkeypatch.setenv("TEST_KEY", "s3cret")
    in_loop(scenario)


def test_an_mcp_server_that_dies_fails_its_calls_and_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        TOOLS
        + """
from loopwright import errors, tools
async def main():
    try:
        await tools.call("cal.die")
    except errors.Unavailable as error:
        return [error.message, await tools.call("cal.count", day="Monday")]
"""
    )

    async def scenario() -> None:
        async with with_calendar("stdio", tmp_path / "log") as system:
            assert (await system.run(source, "wasm")).result == ["the MCP server cal is gone", 6]

    monkeypatch.setenv("TEST_KEY", "x")
    in_loop(scenario)


@pytest.mark.parametrize("config", [{"command": ["/no/such/program"]}, {"url": "http://127.0.0.1:9/mcp"}])
def test_an_mcp_server_that_is_not_there_is_said_when_the_server_starts(config: dict[str, Any]) -> None:
    async def scenario() -> None:
        with pytest.raises(BadRequest) as caught:
            async with open_toolbox(msgspec.convert({"mcp": {"cal": config}}, ToolsConfig)):
                pass
        assert caught.value.field == "tools.mcp.cal"

    asyncio.run(scenario())


@pytest.mark.parametrize("permissions", ["", 'tools = ["other"]'])
def test_a_tool_that_is_not_listed_is_refused_and_not_shown(
    permissions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        f"# /// program\n# permissions = {{ {permissions} }}\n# ///\n"
        + """
from loopwright import emit, tools
async def main():
    emit(len(await tools.list()))
    await tools.call("cal.add", day="x", what="y")
"""
    )

    async def scenario() -> None:
        log = tmp_path / "log"
        async with with_calendar("stdio", log) as system:  # which has the tool
            outcome = await system.run(source)
        assert [event.value for event in outcome.events if isinstance(event, Emit)] == [0]
        assert outcome.final.code == "denied"
        assert outcome.final.error is not None
        assert outcome.final.error.hint.endswith('"cal.add"] }')
        assert log.read_text() == ""  # it was not asked

    monkeypatch.setenv("TEST_KEY", "x")
    in_loop(scenario)
