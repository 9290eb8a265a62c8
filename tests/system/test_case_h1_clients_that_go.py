"""Case H1. A hundred clients close their sockets while their requests are queued, in prefill, decoding, read as a
whole, or in a program that waits for a slow tool. Within one step of the engine every page is back, the tool calls are
cancelled, and the requests of those who stayed say what they say alone."""

import asyncio
from typing import Any

import pytest
from http_rig import Served, Tool, served, tool

from loopwright.control.config import ControlConfig
from system_rig import System, WatchedExecutor, byte_system, in_loop, until

pytestmark = pytest.mark.wasm

NUM_STREAMED, NUM_WHOLE, NUM_IN_TOOL, NUM_LONG, NUM_STAYING = 25, 20, 20, 35, 8
LONG_PROMPT = "x" * 600  # several steps of prefill; those behind the first wait in the queue

PROGRAM = """
# /// program
# permissions = { http = ["127.0.0.1:*"] }
# ///
from loopwright import Context, http
async def main(port: int):
    ctx = Context()
    ctx.append("A context that holds pages while its program waits for the tool. ")
    await ctx.flush()
    ctx.append(await http.get_text(f"http://127.0.0.1:{port}/", timeout_s=600))
    return (await ctx.generate(max_tokens=8)).text
"""


def test_a_hundred_clients_that_go_give_all_back_within_one_step() -> None:
    async def scenario() -> None:
        control = ControlConfig(max_batch_rows=128, max_batch_tokens=160)
        async with (
            byte_system(num_blocks=1024, control=control) as system,
            served(system) as client,
            tool("slow", answers_at_once=False) as slow,
        ):
            engine = system.executor
            assert isinstance(engine, WatchedExecutor)
            assert (await client.http.post("/v1/programs", json={"name": "agent", "source": PROGRAM})).is_success
            alone = [await stay(client, number) for number in range(NUM_STAYING)]

            engine.hold()
            staying = [asyncio.create_task(stay(client, number)) for number in range(NUM_STAYING)]
            leaving = await start_leaving(client, engine, slow)
            num_steps = (await system.controller.stats()).num_steps
            for writer in leaving:
                writer.close()
            await until(lambda: num_live_runs_is(system, NUM_STAYING))
            engine.step()
            await until(lambda: engine.is_waiting)

            after = await system.controller.stats()
            rows = engine.batches[-1].all_rows  # of the step that is held now
            assert after.num_steps == num_steps + 1
            assert len(rows) == NUM_STAYING
            assert after.num_blocks - after.num_free_blocks == sum(len(row.block_ids) for row in rows)
            assert after.num_waiting_calls == 0
            system.controller.check_integrity()
            await until(lambda: slow.num_hung_up == NUM_IN_TOOL)
            codes = [run.code for run in await system.launcher.runs()]
            assert codes.count("cancelled") == len(leaving) == 100

            engine.release()
            assert await asyncio.gather(*staying) == alone

    in_loop(scenario)


async def start_leaving(client: Served, engine: WatchedExecutor, slow: Tool) -> list[asyncio.StreamWriter]:
    """A hundred requests in five different states, over an engine that is held."""
    open_socket = client.open_socket
    bodies = [chat_body("Count.", stream=number < NUM_STREAMED) for number in range(NUM_STREAMED + NUM_WHOLE)]
    leaving = [await open_socket("/v1/chat/completions", body) for body in bodies]
    for number in range(NUM_IN_TOOL):
        body = {"arguments": {"port": slow.port}, "stream": number % 2 == 0}
        leaving.append(await open_socket("/v1/programs/agent/runs", body))
    num_short = NUM_STREAMED + NUM_WHOLE + NUM_STAYING
    await until(lambda: num_waiting_calls_is(client.system, num_short + NUM_IN_TOOL - 1))  # and one is in the held step

    await step_until(engine, lambda sizes: sizes == [1] * num_short)  # the programs' prompts have run too
    await until(lambda: slow.num_asked == NUM_IN_TOOL)

    leaving += [await open_socket("/v1/chat/completions", chat_body(LONG_PROMPT)) for _ in range(NUM_LONG)]
    await until(lambda: num_waiting_calls_is(client.system, NUM_LONG))
    await step_until(engine, lambda sizes: len(sizes) == num_short + 1 and engine.batches[-1].all_rows[-1].kv_len > 0)
    await until(lambda: num_waiting_calls_is(client.system, NUM_LONG - 1))  # queued: one of them is in prefill
    return leaving


async def step_until(engine: WatchedExecutor, is_reached: Any) -> None:
    """Takes steps until the numbers of tokens in the rows of the one that waits are as wanted."""
    while not is_reached([row.num_tokens for row in engine.batches[-1].all_rows]):
        engine.step()
        await until(lambda: engine.is_waiting)


async def stay(client: Served, number: int) -> str:
    """A seeded request whose text names every token; every second one is streamed."""
    ascii_only = {str(token): -100 for token in range(128, 260)}
    chat = client.stream_chat if number % 2 else client.chat
    return await chat(f"Stay {number}.", max_tokens=100, temperature=1, seed=number, logit_bias=ascii_only)


def chat_body(content: str, stream: bool = True) -> dict[str, Any]:
    ends = {str(token): -100 for token in (257, 259)}  # it goes on until its client goes
    messages = [{"role": "user", "content": content}]
    return {"model": "byte", "messages": messages, "stream": stream, "logit_bias": ends}


async def num_live_runs_is(system: System, number: int) -> bool:
    return (await system.controller.stats()).num_live_runs == number


async def num_waiting_calls_is(system: System, number: int) -> bool:
    return (await system.controller.stats()).num_waiting_calls == number
