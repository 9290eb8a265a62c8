"""Speaks to MCP servers through the official package `mcp`. Never decides who may call what: the toolbox does.

A server's connection is held by one task, as the package wants it; calls come from any. One that has ended is made
anew by the next call.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from loopwright.core.errors import BadRequest, LoopwrightError, ToolFailed, Unavailable
from loopwright.runtime.tool_config import McpServerConfig, with_environment

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

MAX_TOOLS = 1000
MAX_RESULT_BYTES = 4 << 20  # as JSON
MAX_SHOWN_CHARS = 200
START_S = 60.0


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    own_name: str
    server: "McpServer"

    async def execute(self, arguments: dict[str, Any], headers: Mapping[str, str]) -> Any:  # noqa: ANN401 (JSON)
        return await self.server.call(self.own_name, arguments)


class McpServer:
    """One server. An asynchronous context manager: inside it is connected, and `tools` are those it has, by full name.
    Raises BadRequest on entry when it cannot be connected to."""

    def __init__(self, name: str, config: McpServerConfig) -> None:
        self.name = name
        self.tools: Mapping[str, McpTool] = {}
        self._config = config
        self._secrets: set[str] = set()
        place = f"tools.mcp.{name}"
        self._env = with_environment(config.env, f"{place}.env", self._secrets)
        self._headers = with_environment(config.headers, f"{place}.headers", self._secrets)
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._holder: asyncio.Task[None] | None = None
        self._has_to_end = asyncio.Event()

    async def __aenter__(self) -> "McpServer":
        try:
            await self._connected()
        except Unavailable as error:
            raise BadRequest(f"tools.mcp.{self.name}: {error.message}", field=f"tools.mcp.{self.name}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._disconnect()

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 (JSON)
        """What the tool answers: its structured content if it has some, else its text. Raises ToolFailed when it says
        that it failed, Unavailable when the server is gone."""
        from mcp import MCPError  # noqa: PLC0415 (an extra: only who has servers needs it)

        client = await self._connected()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                answer = await client.call_tool(tool, arguments)
        except TimeoutError:
            raise Unavailable(f"the tool {self.name}.{tool}: no answer in {self._config.timeout_s} s") from None
        except MCPError as error:
            if self._client is client and _is_connection_lost(error):
                await self._disconnect()
                raise Unavailable(f"the MCP server {self.name} is gone") from None
            raise ToolFailed(f"the tool {self.name}.{tool}: {self._without_secrets(error.message)}") from None
        except Exception as error:  # noqa: BLE001 (another's package: whatever it makes of what the server says)
            if isinstance(error, OSError) or self._holder is None or self._holder.done():  # its streams are closed
                await self._disconnect()
                raise Unavailable(f"the MCP server {self.name}: {type(error).__name__}") from None
            said = self._without_secrets(str(error))[:MAX_SHOWN_CHARS]
            raise ToolFailed(f"the tool {self.name}.{tool} answered with what cannot be used: {said}") from None
        try:
            result = self._result(tool, answer)
            num_bytes = len(msgspec.json.encode(result))
        except RecursionError:
            raise ToolFailed(f"the tool {self.name}.{tool} answered with what is nested too deeply") from None
        if num_bytes > MAX_RESULT_BYTES:
            raise ToolFailed(
                f"the tool {self.name}.{tool} answered with {num_bytes} bytes; the limit is {MAX_RESULT_BYTES}"
            )
        return result

    def _result(self, tool: str, answer: "CallToolResult") -> Any:  # noqa: ANN401 (JSON)
        texts = [part.text for part in answer.content if part.type == "text"]
        text = self._without_secrets("\n".join(texts))
        if answer.is_error:
            raise ToolFailed(f"the tool {self.name}.{tool}: {text}")
        if answer.structured_content is not None:
            content: Any = answer.structured_content
            is_wrapped = isinstance(content, dict) and set(content) == {"result"}  # how a plain value is sent
            return self._cleaned(content["result"] if is_wrapped else content)
        if len(texts) != len(answer.content):
            kinds = ", ".join(sorted({part.type for part in answer.content} - {"text"}))
            raise ToolFailed(f"the tool {self.name}.{tool} answered with {kinds}; only text and data can be passed on")
        return text

    async def _connected(self) -> "Client":
        async with self._connecting:
            if self._holder is not None and self._holder.done():
                self._client = None
            if self._client is None:
                started: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._has_to_end = asyncio.Event()
                self._holder = asyncio.create_task(self._hold(started, self._has_to_end))
                self._holder.add_done_callback(lambda done: done.cancelled() or done.exception())
                try:
                    self._client = await asyncio.shield(started)
                except asyncio.CancelledError:
                    self._has_to_end.set()
                    raise
            return self._client

    async def _hold(self, started: "asyncio.Future[Client]", has_to_end: asyncio.Event) -> None:
        """Opens the connection, and closes it when told to."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(START_S):
                    client = await self._open(stack)
                    self.tools = await self._list(client)
                if not started.done():
                    started.set_result(client)
                    await has_to_end.wait()
        except Exception as problem:  # noqa: BLE001 (another's package, which raises groups of anything)
            if not started.done():
                started.set_exception(_as_unavailable(problem))
                started.exception()  # nobody may be waiting any more

    async def _open(self, stack: AsyncExitStack) -> "Client":
        try:
            import httpx2  # noqa: PLC0415 (an extra, as mcp)
            from mcp import Client, StdioServerParameters  # noqa: PLC0415 (an extra)
            from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 (an extra)
        except ImportError:
            raise Unavailable("the package mcp is not installed: pip install 'loopwright[mcp]'") from None
        if self._config.command:
            command, *words = self._config.command
            server = StdioServerParameters(command=command, args=words, env=self._env)
            return await stack.enter_async_context(Client(server))
        client = httpx2.AsyncClient(headers=self._headers, timeout=self._config.timeout_s, trust_env=False)
        http = await stack.enter_async_context(client)
        return await stack.enter_async_context(Client(streamable_http_client(self._config.url, http_client=http)))

    async def _list(self, client: "Client") -> Mapping[str, McpTool]:
        found: dict[str, McpTool] = {}
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for one in page.tools:
                name = f"{self.name}.{one.name}"
                found[name] = McpTool(name, one.description or "", one.input_schema, one.name, self)
            cursor = page.next_cursor
            if not cursor:
                return found
            if len(found) > MAX_TOOLS:
                raise Unavailable(f"it has more than {MAX_TOOLS} tools")

    async def _disconnect(self) -> None:
        holder, self._client = self._holder, None
        self._has_to_end.set()
        if holder is not None:
            await asyncio.wait({holder})

    def _cleaned(self, value: Any) -> Any:  # noqa: ANN401 (JSON)
        """Without secrets, anywhere: a server may send back what it was started with."""
        if isinstance(value, str):
            return self._without_secrets(value)
        if isinstance(value, list):
            return [self._cleaned(one) for one in value]
        if isinstance(value, dict):
            return {self._without_secrets(name): self._cleaned(one) for name, one in value.items()}
        return value

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text


def _is_connection_lost(error: Exception) -> bool:
    from mcp.types import CONNECTION_CLOSED  # noqa: PLC0415 (an extra)

    return getattr(error, "code", None) == CONNECTION_CLOSED


def _as_unavailable(problem: Exception) -> LoopwrightError:
    while isinstance(problem, ExceptionGroup):
        problem = problem.exceptions[0]
    if isinstance(problem, LoopwrightError):
        return problem
    return Unavailable(f"it cannot be connected to: {type(problem).__name__}: {problem}")
