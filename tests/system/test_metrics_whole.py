"""Metrics of a real server: runs that end well, fail, are cancelled and time out; tools; chat; and nothing secret."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loopwright.core.events import Text
from loopwright.core.runs import RunSpec
from loopwright.runtime.launcher import UPLOADED
from loopwright.server.app import create_app
from system_rig import System, byte_system, in_loop, until

GENERATE = """
from loopwright import Context

async def main(max_tokens: int = 4):
    ctx = Context()
    ctx.append("one and two and three and four")
    return len((await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).tokens)
"""
RAISES = "async def main(): raise ValueError('no')"
WAITS = """
import asyncio
from loopwright import emit_text

async def main():
    emit_text("waits")
    await asyncio.sleep(1000)
"""


class Scraped:
    """Samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [one for family in text_string_to_metric_families(text) for one in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Over all series that have these labels."""
        name = f"loopwright:{name}"
        return sum(one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items())

    def labels(self, name: str, label: str) -> set[str]:
        return {one.labels[label] for one in self._samples if one.name == f"loopwright:{name}"}


@asynccontextmanager
async def scraping(system: System) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(system.launcher))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def scrape(client: httpx.AsyncClient) -> Scraped:
    return Scraped((await client.get("/metrics")).raise_for_status().text)


def test_runs_are_counted_by_their_end_and_their_phases_add_up_to_their_time() -> None:
    async def scenario() -> None:
        async with byte_system() as system, scraping(system) as client:
            await system.launcher.deploy("counter", GENERATE, "counter.py")
            spec = RunSpec(program="counter", sandbox="native")
            for _ in range(2):
                async for _event in system.launcher.events(await system.launcher.start(spec)):
                    pass
            await system.run(RAISES)
            waiting = await system.start(WAITS)
            found = await scrape(client)
            assert found.sum("num_requests_running") + found.sum("num_requests_waiting") == 1
            await system.launcher.cancel(waiting.run_id)
            await waiting.outcome()
            found = await scrape(client)
            codes = {code: found.sum("runs_total", code=code) for code in ("ok", "program_error", "cancelled")}
            assert codes == {"ok": 2, "program_error": 1, "cancelled": 1}
            assert found.sum("runs_total", program="counter", code="ok") == 2
            assert found.sum("runs_total", program=UPLOADED) == 2
            assert found.sum("num_requests_running") == found.sum("num_requests_waiting") == 0
            assert found.sum("launches_total", sandbox="native") == 4
            assert found.sum("generation_tokens_total", program="counter", model="byte") == 8
            assert found.sum("prompt_tokens_total", program="counter") == 2 * (1 + 30), (
                "with the token that begins a text"
            )
            assert found.sum("prefix_cache_hits_total") == found.sum("prompt_tokens_cached_total") == 16
            assert found.sum("time_to_first_token_seconds_count", program="counter") == 2
            assert found.sum("inter_token_latency_seconds_count") == 2 * 3
            assert found.sum("kv_byte_seconds_total", program="counter") > 0
            assert (
                found.sum("step_rows_count")
                == found.sum("step_shapes_total")
                == (await system.controller.stats()).num_steps
            )
            total = found.sum("e2e_request_latency_seconds_sum")
            assert found.sum("run_phase_seconds_total") == pytest.approx(total, rel=1e-9)
            assert {"decode", "prefill", "program"} <= found.labels("run_phase_seconds_total", "phase")

    in_loop(scenario)


def test_where_a_run_was_when_it_was_cancelled_is_told_as_far_as_it_is_known() -> None:
    async def scenario() -> None:
        async with byte_system() as system, scraping(system) as client:
            engine = system.executor
            engine.hold()  # type: ignore[attr-defined]
            running = await system.start(GENERATE, max_tokens=1000)
            await until(lambda: engine.is_waiting)  # type: ignore[attr-defined]
            await system.launcher.cancel(running.run_id)
            await running.outcome()
            engine.release()  # type: ignore[attr-defined]
            found = await scrape(client)
            assert found.sum("runs_total", code="cancelled") == 1
            assert found.sum("run_phase_seconds_total", phase="unfinished") > 0
            assert found.sum("run_phase_seconds_total") == pytest.approx(found.sum("e2e_request_latency_seconds_sum"))
            assert found.sum("time_to_first_token_seconds_count") == 0

    in_loop(scenario)


@pytest.mark.wasm
def test_sandboxed_programs_have_launches_cpu_and_memory() -> None:
    async def scenario() -> None:
        async with byte_system() as system, scraping(system) as client:
            running = await system.start(WAITS, sandbox="wasm")
            async for event in system.launcher.events(running.run_id):
                if isinstance(event, Text):
                    break
            found = await scrape(client)
            assert found.sum("sandbox_instances", sandbox="wasm") == found.sum("num_requests_running") == 1
            assert found.sum("sandbox_memory_bytes") > 256 << 10, "what one instance alone writes to"
            await system.launcher.cancel(running.run_id)
            await running.outcome()
            assert (await system.run(GENERATE, sandbox="wasm")).result == 4
            found = await scrape(client)
            assert found.sum("sandbox_instances", sandbox="wasm") == 0
            assert found.sum("launch_seconds_count", sandbox="wasm") == 2
            assert found.sum("program_cpu_seconds_total") > 0
            assert found.sum("call_seconds_count", op="segment") == 1
            assert found.sum("run_phase_seconds_total", phase="wait") > 0, "it slept"
            assert found.sum("run_phase_seconds_total", phase="program") > 0
            assert found.sum("run_phase_seconds_total") == pytest.approx(found.sum("e2e_request_latency_seconds_sum"))

    in_loop(scenario)


def test_prompts_and_arguments_are_in_no_metric() -> None:
    async def scenario() -> None:
        async with byte_system() as system, scraping(system) as client:
            await system.chat("hunter2 is a secret", max_tokens=2)
            assert "hunter2" not in json.dumps((await scrape(client)).text)
            assert (await scrape(client)).sum("runs_total", program="chat", code="ok") == 1
            await asyncio.sleep(0)

    in_loop(scenario)
