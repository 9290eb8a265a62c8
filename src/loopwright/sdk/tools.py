"""Tools: functions with a JSON schema, which a program declares with `@tool` or finds at its server. Never executes a
tool of the server: the host does, if the program's permissions list it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.port import current_port
from loopwright.sdk.schema_check import check
from loopwright.sdk.tool_schema import JsonSchema, declaration


@checked
class Tool:
    """A function that a program, or the model that it asks, may call: `await tool(city="Paris")`.

    `parameters` is a JSON schema of type object; arguments that do not fit it are BadRequest, its field such as
    `search.city`, and the function is not called. With `strict`, a schema to which no grammar can hold what a model
    writes is an error of the segment that it is given to; without, arguments are then held to be an object alone."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: JsonSchema,
        execute: Callable[[dict[str, Any]], Any],
        *,
        strict: bool = True,
    ) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self.is_strict = strict
        self._execute = execute

    @property
    def spec(self) -> dict[str, Any]:
        """What a model is told of it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    async def __call__(self, /, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
        check(arguments, self.parameters, self.name)
        result = self._execute(arguments)
        return await result if inspect.isawaitable(result) else result

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


@checked
def tool(function: Callable[..., Any]) -> Tool:
    """Declares a function of the program, `async def` or `def`, as a tool.

    Its name, its docstring and its typed parameters are what a model is told of it. A parameter's own description is
    its line under `Args:` in the docstring, or a text: `city: Annotated[str, "Which city"]`. Raises TypeError for a
    parameter without a type, or with one that JSON has not."""
    found = declaration(function)
    return Tool(found.name, found.description, found.parameters, lambda arguments: function(**arguments))


@checked
def client_tool(spec: dict[str, Any]) -> Tool:
    """A tool of the client whose request the program answers, in the form of OpenAI's requests. The model may call it;
    to execute is up to the client, so calling it here is NotImplementedError: give its calls to `emit_tool_call`."""
    function = spec["function"]
    schema = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    is_strict = function.get("strict") is True
    return Tool(function["name"], function.get("description") or "", schema, _of_client, strict=is_strict)


def _of_client(arguments: dict[str, Any]) -> None:
    raise NotImplementedError("a client's tool is executed by the client: emit_tool_call")


@checked
async def call(name: str, /, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
    """The result of a tool of the server. Raises PermissionDenied unless the program's permissions list it, NotFound,
    BadRequest for arguments that do not fit its schema, ToolFailed."""
    return await _execute(name, arguments)


async def list() -> tuple[Tool, ...]:
    """The tools of the server that the program's permissions list."""
    found = await current_port().issue({"op": "list_tools"})
    return tuple(_server_tool(one["name"], one["description"], one["parameters"]) for one in found["tools"])


def _server_tool(name: str, description: str, parameters: JsonSchema) -> Tool:
    return Tool(name, description, parameters, lambda arguments: _execute(name, arguments))


async def _execute(name: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 (JSON)
    answer = await current_port().issue({"op": "call_tool", "name": name, "arguments": arguments})
    return answer["result"]
