"""Spans of runs, into OpenTelemetry's own exporter in memory: they add up, keep to the caller's trace, and tell nothing
that somebody wrote."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from loopwright.compose.logs import JsonLines
from loopwright.compose.otel_spans import OtelSpans
from loopwright.runtime.tool_config import HttpToolConfig, ToolsConfig
from loopwright.server.app import create_app
from system_rig import System, byte_system, in_loop, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b", "x-request-id": "mine-17"}

CHAT = {"model": "byte", "messages": [{"role": "user", "content": "hunter2"}], "temperature": 0, "max_tokens": 4}
TOOL_PROGRAM = """
# /// program
# permissions = { tools = ["weather"] }
# ///
from loopwright import Context, tools

async def main():
    ctx = Context()
    ctx.append("hunter2 and then")
    await ctx.generate(max_tokens=3, ignore_eos=True)
    return await tools.call("weather", city="hunter2")
"""
RAISES = "async def main(): raise ValueError('hunter2')"
GENERATES = """
from loopwright import Context

async def main():
    ctx = Context()
    ctx.append("one")
    await ctx.generate(max_tokens=1000, ignore_eos=True)
"""


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.sink = OtelSpans(SimpleSpanProcessor(self.exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    @property
    def root(self) -> ReadableSpan:
        (root,) = [one for one in self.all if one.kind is SpanKind.SERVER]
        return root

    def phases(self) -> list[ReadableSpan]:
        return [one for one in self.all if "loopwright.phase" in (one.attributes or {})]

    def assert_whole(self) -> None:
        """The phases follow each other from the root's beginning to its end, and lie in it."""
        root, phases = self.root, self.phases()
        assert [one.parent.span_id for one in phases if one.parent] == [root.context.span_id] * len(phases)
        assert {one.context.trace_id for one in self.all} == {root.context.trace_id}
        times = [root.start_time, *(time for one in phases for time in (one.start_time, one.end_time)), root.end_time]
        pairs = zip(times[::2], times[1::2], strict=True)
        assert all(abs(end - start) < 2_000 for end, start in pairs), "rounded to nanoseconds, from floats"  # type: ignore[operator]
        total = sum(one.end_time - one.start_time for one in phases)  # type: ignore[operator]
        assert total == pytest.approx(root.end_time - root.start_time, rel=0.001)  # type: ignore[operator]


@asynccontextmanager
async def spanned(**options: Any) -> AsyncIterator[tuple[System, Spans, httpx.AsyncClient]]:
    spans = Spans()
    async with byte_system(spans=spans.sink, **options) as system:
        transport = httpx.ASGITransport(create_app(system.launcher))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield system, spans, client


async def over(spans: Spans) -> None:
    await until(lambda: any(one.kind is SpanKind.SERVER for one in spans.all))


def test_a_request_is_a_span_in_its_callers_trace_and_its_phases_add_up_to_it() -> None:
    async def scenario() -> None:
        async with spanned() as (_, spans, client):
            answer = await client.post("/v1/chat/completions", json=CHAT, headers=HEADERS)
            assert answer.status_code == 200
            usage = answer.json()["usage"]
            await over(spans)
            spans.assert_whole()
            root, attributes = spans.root, dict(spans.root.attributes or {})
            assert f"{root.context.trace_id:032x}" == TRACE
            assert root.parent is not None
            assert f"{root.parent.span_id:016x}" == PARENT
            assert root.context.trace_state.get("a") == "b"
            assert root.name == "chat byte"
            assert root.status.status_code is StatusCode.UNSET
            expected = {
                "gen_ai.operation.name": "chat", "gen_ai.provider.name": "loopwright", "gen_ai.request.model": "byte",
                "gen_ai.usage.output_tokens": usage["completion_tokens"], "loopwright.run.code": "ok",
                "loopwright.request.id": "mine-17",
            }  # fmt: skip
            assert expected.items() <= attributes.items()
            assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
            known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
            assert {name for name in attributes if name.startswith("gen_ai.")} <= known
            names = {one.name for one in spans.phases()}
            assert {"queue", "prefill"} <= names
            assert "unfinished" not in names
            assert "hunter2" not in "".join(one.to_json() for one in spans.all)

    in_loop(scenario)


def test_tools_have_spans_and_are_told_of_the_trace() -> None:
    asked: list[str] = []

    async def weather(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nwet")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(weather, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        tool = HttpToolConfig(url=f"http://127.0.0.1:{port}/{{city}}", description="", parameters=schema)
        async with server, spanned(tools=ToolsConfig(http={"weather": tool})) as (system, spans, _):
            assert (await system.run(TOOL_PROGRAM)).result == "wet"
            await over(spans)
            spans.assert_whole()
            (tool_span,) = [one for one in spans.all if one.name == "execute_tool weather"]
            assert dict(tool_span.attributes or {})["gen_ai.tool.name"] == "weather"
            assert {"prefill", "decode", "tool"} <= {one.name for one in spans.phases()}
            context = spans.root.context
            assert f"traceparent: 00-{context.trace_id:032x}-{context.span_id:016x}-01\r\n" in asked[0]
            assert "hunter2" not in "".join(one.to_json() for one in spans.all)

    in_loop(scenario)


def test_a_run_that_fails_has_its_code_and_nothing_of_its_message() -> None:
    async def scenario() -> None:
        async with spanned() as (system, spans, _):
            assert (await system.run(RAISES)).final.code == "program_error"
            await over(spans)
            spans.assert_whole()
            assert spans.root.status.status_code is StatusCode.ERROR
            assert dict(spans.root.attributes or {})["error.type"] == "program_error"
            assert "hunter2" not in spans.root.to_json()

    in_loop(scenario)


def test_a_run_that_is_cancelled_while_it_runs_adds_up_too() -> None:
    async def scenario() -> None:
        async with spanned() as (system, spans, _):
            engine = system.executor
            engine.hold()  # type: ignore[attr-defined]
            running = await system.start(GENERATES)
            await until(lambda: engine.is_waiting)  # type: ignore[attr-defined]
            await system.launcher.cancel(running.run_id)
            await running.outcome()
            engine.release()  # type: ignore[attr-defined]
            await over(spans)
            spans.assert_whole()
            assert dict(spans.root.attributes or {})["loopwright.run.code"] == "cancelled"
            assert "unfinished" in {one.name for one in spans.phases()}

    in_loop(scenario)


@pytest.mark.parametrize(("flags", "num_spans"), [("00", 0), ("01", 1)])
def test_the_caller_decides_what_is_recorded(flags: str, num_spans: int) -> None:
    async def scenario() -> None:
        async with spanned() as (_, spans, client):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
            await client.get("/v1/runs")
            await asyncio.sleep(0)
            assert sum(one.kind is SpanKind.SERVER for one in spans.all) == num_spans

    in_loop(scenario)


def test_a_request_has_an_id_in_its_answer_and_in_the_log_and_the_log_has_nothing_else_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with spanned() as (_, spans, client):
            named = await client.post("/v1/chat/completions?key=hunter2", json=CHAT, headers=HEADERS)
            unnamed = await client.get("/v1/models", headers={"x-request-id": "has a blank"})
            assert named.headers["x-request-id"] == "mine-17"
            assert len(unnamed.headers["x-request-id"]) == 32
            await over(spans)

    logger = logging.getLogger("loopwright")
    propagates, logger.propagate = logger.propagate, True
    try:
        with caplog.at_level(logging.INFO, "loopwright"):
            in_loop(scenario)
    finally:
        logger.propagate = propagates
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records if hasattr(record, "told")]
    (ended,) = [line for line in lines if line["message"] == "the run is over"]
    assert (ended["request"], ended["program"], ended["code"]) == ("mine-17", "chat", "ok")
    answered = [line for line in lines if line["log"] == "loopwright.access"]
    assert [(line["path"], line["status"], line["method"]) for line in answered] == [
        ("/v1/chat/completions", 200, "POST"), ("/v1/models", 200, "GET"),
    ]  # fmt: skip
    assert answered[0]["request"] == "mine-17"
    assert ended["run"]
    assert "hunter2" not in json.dumps(lines)
