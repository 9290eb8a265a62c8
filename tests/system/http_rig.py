"""A real HTTP server on loopback over a whole system, with the clients that talk to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from anthropic import AsyncAnthropic
from anthropic import DefaultAsyncHttpxClient as AnthropicHttp
from openai import AsyncOpenAI

from loopwright.server.app import create_app
from loopwright.server.http import serve
from loopwright.server.identity import TenantOf, everybody
from system_rig import System


@dataclass(frozen=True)
class Served:
    """A system that is served."""

    system: System
    port: int
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic

    @property
    def model(self) -> str:
        return self.system.text.info.name

    async def chat(self, content: str, **options: Any) -> str:
        """The text of a whole completion; greedy unless told otherwise."""
        options = {"messages": [{"role": "user", "content": content}], "temperature": 0, **options}
        answer = await self.openai.chat.completions.create(model=self.model, **options)
        return answer.choices[0].message.content or ""

    async def stream_chat(self, content: str, **options: Any) -> str:
        """The joined deltas of a streamed completion."""
        options = {"messages": [{"role": "user", "content": content}], "temperature": 0, **options}
        stream = await self.openai.chat.completions.create(model=self.model, stream=True, **options)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run_source(self, source: str, **arguments: Any) -> httpx.Response:
        """Runs a program given by its source, in the Wasm sandbox, and waits for its end."""
        body = {"source": source, "arguments": arguments, "stream": False}
        return await self.http.post("/v1/runs", json=body)

    async def open_socket(self, path: str, body: dict[str, Any]) -> asyncio.StreamWriter:
        """Sends a request on a connection of its own, which the caller closes; what comes back stays unread."""
        payload = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        return writer


@asynccontextmanager
async def served(system: System, tenant_of: TenantOf = everybody) -> AsyncIterator[Served]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    app = create_app(system.launcher, tenant_of=tenant_of)
    serving = asyncio.create_task(serve(app, "127.0.0.1", 0, port.set_result))
    await asyncio.wait({serving, port}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    url = f"http://127.0.0.1:{port.result()}"
    limits = httpx.Limits(max_connections=None)  # and no certificates, which a client takes 17 ms to read
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False, limits=limits) as http,
        AsyncAnthropic(
            base_url=url, api_key="unused", max_retries=0, http_client=AnthropicHttp(verify=False)
        ) as anthropic,
    ):
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, http_client=http)
        try:
            yield Served(system, port.result(), http, client, anthropic)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


class Tool:
    """An HTTP server that programs may call: it answers `body` to everyone, once it may."""

    def __init__(self, body: str) -> None:
        self.port = 0
        self.num_asked = 0
        self.num_hung_up = 0  # callers that went before they were answered
        self.may_answer = asyncio.Event()
        self._body = body.encode()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.num_asked += 1
        leaving, waiting = asyncio.create_task(reader.read()), asyncio.create_task(self.may_answer.wait())
        await asyncio.wait({leaving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(self._body))
            writer.write(self._body)
        else:
            self.num_hung_up += 1
        leaving.cancel()
        waiting.cancel()
        writer.close()


@asynccontextmanager
async def tool(body: str, *, answers_at_once: bool = True) -> AsyncIterator[Tool]:
    """A tool on a free port of loopback."""
    one = Tool(body)
    if answers_at_once:
        one.may_answer.set()
    server = await asyncio.start_server(one.answer, "127.0.0.1", 0)
    async with server:
        one.port = server.sockets[0].getsockname()[1]
        yield one
