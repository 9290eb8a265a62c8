"""The server's tools, called for programs whose permissions list them. Never speaks to one: HTTP tools and MCP servers
do. Opened by compose, one for all runs of a process; asked by services.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from loopwright.core.errors import BadRequest, Code, LoopwrightError, NotFound
from loopwright.core.outside_calls import CallTool
from loopwright.runtime.egress import Egress
from loopwright.runtime.http_tools import HttpTool
from loopwright.runtime.mcp_tools import McpServer
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.tool_config import ToolsConfig
from loopwright.sdk.errors import BadRequest as DoesNotFit
from loopwright.sdk.schema_check import check

MAX_SUMMARY_CHARS = 200
NO_HEADERS: Mapping[str, str] = {}


class ServerTool(Protocol):
    """One tool, wherever it is executed."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...

    async def execute(self, arguments: dict[str, Any], headers: Mapping[str, str]) -> Any:  # noqa: ANN401 (JSON)
        """The result, as JSON. `headers` are those of the trace, for who speaks HTTP. Raises ToolFailed, Unavailable.
        Cancelled when nobody waits any more."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool, for the run's events. `outcome` is ok or the code of its error."""

    name: str
    arguments: str  # JSON, cut
    duration_s: float
    outcome: Code


class Toolbox:
    """All tools by name."""

    def __init__(self, tools: Mapping[str, ServerTool], servers: Mapping[str, McpServer]) -> None:
        self._tools = tools
        self._servers = servers

    def list(self, permissions: Permissions) -> dict[str, Any]:
        """{tools}: those that the permissions list."""
        names = sorted(name for name in self._all() if permissions.may_use_tool(name))
        found = [self._all()[name] for name in names]
        return {
            "tools": [{"name": one.name, "description": one.description, "parameters": one.parameters} for one in found]
        }

    async def call(
        self,
        call: CallTool,
        permissions: Permissions,
        tell: Callable[[ToolUse], None],
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> dict[str, Any]:
        """{result}. Raises PermissionDenied, NotFound, BadRequest, ToolFailed, Unavailable."""
        permissions.check_tool(call.name)
        tool = self._all().get(call.name)
        if tool is None:
            raise NotFound(f"this server has no tool {call.name!r}", hint="tools.list() tells of them", field="name")
        try:
            check(call.arguments, tool.parameters, call.name)
        except DoesNotFit as error:
            raise BadRequest(error.message, field=error.field) from None
        began_s = time.monotonic()
        outcome: Code = "cancelled"
        try:
            result = await tool.execute(call.arguments, headers)
            outcome = "ok"
        except LoopwrightError as error:
            outcome = error.code
            raise
        finally:
            summary = msgspec.json.encode(call.arguments).decode()
            summary = summary if len(summary) <= MAX_SUMMARY_CHARS else f"{summary[:MAX_SUMMARY_CHARS]}…"
            tell(ToolUse(call.name, summary, time.monotonic() - began_s, outcome))
        return {"result": result}

    def _all(self) -> Mapping[str, ServerTool]:
        found: dict[str, ServerTool] = dict(self._tools)
        for server in self._servers.values():
            found.update(server.tools)
        return found


NO_TOOLS = Toolbox({}, {})


@asynccontextmanager
async def open_toolbox(config: ToolsConfig) -> AsyncIterator[Toolbox]:
    """Reads the tools and connects to the MCP servers. Raises BadRequest for one that cannot be made, naming it."""
    async with AsyncExitStack() as stack:
        egress = Egress()
        stack.push_async_callback(egress.close)
        http = {name: HttpTool(name, one, egress) for name, one in config.http.items()}
        servers = {name: await stack.enter_async_context(McpServer(name, one)) for name, one in config.mcp.items()}
        yield Toolbox(http, servers)
