"""The tools that a server offers to programs, as its configuration names them. Never makes one. A section of compose's.

In headers and in the environment of an MCP server `${NAME}` stands for a variable of the server's environment: secrets
stay out of the file, out of programs and out of logs.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Timeout: TypeAlias = Annotated[float, Meta(gt=0, le=600)]
Secrets: TypeAlias = Annotated[dict[str, str], Meta(extra={"secret": True})]
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class HttpToolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One HTTP exchange. An argument named in `url` as `{name}` is put there, percent-encoded; the others are the query
    of a GET or DELETE, and the JSON body of any other method. `parameters` is a JSON schema of type object."""

    url: str
    description: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    headers: Secrets = msgspec.field(default_factory=dict)
    timeout_s: Timeout = 30.0


class McpServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An MCP server: a `command`, spoken to over its standard streams, or the `url` of one that speaks streamable HTTP.
    Its tools are named `server.tool`."""

    command: tuple[str, ...] = ()
    env: Secrets = msgspec.field(default_factory=dict)
    url: str = ""
    headers: Secrets = msgspec.field(default_factory=dict)
    timeout_s: Timeout = 60.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a url")
        if (self.command and self.headers) or (self.url and self.env):
            raise ValueError("headers go with a url, env with a command")


class ToolsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `tools`, by name."""

    http: Annotated[
        dict[Name, HttpToolConfig], Meta(description="tools that are one HTTP exchange each, by name: see outside.md")
    ] = msgspec.field(default_factory=dict)
    mcp: Annotated[
        dict[Name, McpServerConfig], Meta(description="MCP servers, whose tools programs may call: see outside.md")
    ] = msgspec.field(default_factory=dict)


def with_environment(values: Mapping[str, str], place: str, secrets: set[str]) -> dict[str, str]:
    """The values with each ${NAME} replaced, which is also put into `secrets`. Raises BadRequest for one not set."""

    def look_up(found: re.Match[str]) -> str:
        value = os.environ.get(found[1])
        if not value:
            raise BadRequest(f"{place} names ${{{found[1]}}}, which the environment has not", field=place)
        secrets.add(value)
        return value

    return {name: _VARIABLE.sub(look_up, value) for name, value in values.items()}
