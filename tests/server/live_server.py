"""A real uvicorn on loopback over a FakeRuns, with the clients that talk to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from anthropic import AsyncAnthropic
from anthropic import DefaultAsyncHttpxClient as AnthropicHttp
from fake_runs import FakeRuns
from openai import AsyncOpenAI
from openai import DefaultAsyncHttpxClient as OpenAIHttp

from loopwright.core.clock import FakeClock
from loopwright.core.runs import Runs
from loopwright.server.app import create_app
from loopwright.server.http import serve


@dataclass(frozen=True)
class Live:
    port: int
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic
    serving: "asyncio.Task[None]"


@asynccontextmanager
async def live_server(runs: FakeRuns | Runs, **options: Any) -> AsyncIterator[Live]:
    loop = asyncio.get_running_loop()
    port: asyncio.Future[int] = loop.create_future()
    serving = asyncio.create_task(
        serve(create_app(runs, clock=FakeClock(1234.5), **options), "127.0.0.1", 0, port.set_result)
    )
    await asyncio.wait({serving, port}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    url = f"http://127.0.0.1:{port.result()}"
    limits = httpx.Limits(max_connections=None)  # and no certificates, which a client takes 17 ms to read
    async with (
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=False, limits=limits) as http,
        AsyncOpenAI(
            base_url=f"{url}/v1", api_key="unused", max_retries=0, http_client=OpenAIHttp(verify=False)
        ) as client,
        AsyncAnthropic(
            base_url=url, api_key="unused", max_retries=0, http_client=AnthropicHttp(verify=False)
        ) as anthropic,
    ):
        try:
            yield Live(port.result(), http, client, anthropic, serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
