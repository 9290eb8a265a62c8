"""A real MCP server for tests: `python mcp_calendar.py` speaks over its standard streams; `calendar()` is for others.

What is asked of it and what is given up are counted; over standard streams they are written to the file that LOG names.
"""

import os
import sys
from typing import Annotated

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel


class Promised(BaseModel):
    """What a tool says that it answers with."""

    number: int


def calendar(asked: list[str]) -> MCPServer:
    server = MCPServer("calendar")

    def note(line: str) -> None:
        asked.append(line)
        if "LOG" in os.environ:
            with open(os.environ["LOG"], "a", encoding="utf-8") as file:
                file.write(line + "\n")

    @server.tool()
    def add(day: str, what: str, hours: int = 1) -> dict[str, str | int]:
        """Adds an appointment."""
        note(f"add {day}")
        return {"day": day, "what": what, "hours": hours}

    @server.tool()
    def count(day: str) -> int:
        """How many appointments a day has."""
        return len(day)

    @server.tool()
    def fail() -> str:
        """Never works."""
        raise ValueError(f"no calendar; the key is {os.environ.get('CALENDAR_KEY')}")

    @server.tool()
    async def wait() -> str:
        """Never ends."""
        note("wait begun")
        try:
            await anyio.sleep_forever()
        finally:
            note("wait given up")

    @server.tool()
    def flood() -> str:
        """Says more than anybody reads."""
        return "x" * (5 << 20)

    @server.tool()
    def lie() -> Annotated[CallToolResult, Promised]:
        """Promises a number and answers with none."""
        return CallToolResult(content=[TextContent(type="text", text="no number")], structured_content={"number": "no"})

    @server.tool()
    def die() -> str:
        """Ends the server."""
        os._exit(3)

    return server


if __name__ == "__main__":
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for the life of the process)
    calendar([]).run("stdio")
