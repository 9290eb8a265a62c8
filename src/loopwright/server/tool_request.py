"""Reads what a chat's body says of tools: those that may be called, the choice among them, and calls and results in its
messages. Pure. Used by `chat_request`, and by whatever else asks a chat with tools.

Only checks what can be known without a model; whether a schema can be held, the run says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.server.body import parse_object

MAX_TOOLS = 256
ToolName = Annotated[str, Meta(pattern="^[A-Za-z0-9_./:-]{1,128}$")]


class FunctionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that may be called. Without parameters it takes none."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A tool. There is no other kind."""

    function: FunctionBody


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    function: FunctionName


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]


class ChosenTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool | ChosenTools
FunctionChoice: TypeAlias = Literal["none", "auto"] | FunctionName


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`arguments` is JSON, as this server gave it, or as another did."""

    name: str
    arguments: str


class CallBody(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="function"
):
    """A call that an assistant's message made."""

    id: str
    function: CalledFunction
    index: int | None = None  # inert: what a client kept of a stream


@dataclass(frozen=True, slots=True)
class AskedTool:
    """A tool, as the built-in programs take it. `field` is where its schema stands in the request."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    is_strict: bool
    field: str


@dataclass(frozen=True, slots=True)
class AskedTools:
    """What may be called, and what must. `allowed` are the names of those that the choice is among: all, mostly.
    `choice` is auto, none, required or one of the names."""

    tools: tuple[AskedTool, ...]
    choice: str = "auto"
    allowed: tuple[str, ...] = ()
    are_calls_parallel: bool = True

    def options(self) -> dict[str, Any]:
        """The option `tools` of the built-in programs."""
        tools = [
            {"name": one.name, "description": one.description, "parameters": one.parameters, "strict": one.is_strict}
            for one in self.tools
        ]
        return {
            "tools": tools,
            "choice": self.choice,
            "allowed": list(self.allowed),
            "parallel": self.are_calls_parallel,
        }

    def field_names(self) -> dict[str, str]:
        """The fields of errors of the run, and those of the request behind them."""
        return {f"tools.{one.name}.parameters": one.field for one in self.tools}


def read_tools(tools: Sequence[ToolBody] | None, choice: ToolChoice | None, parallel: bool | None) -> AskedTools | None:
    """None without tools. Raises BadRequest naming the field."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice: only allowed with tools", field="tool_choice")
        return None
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"tools: {len(tools)} tools; the limit is {MAX_TOOLS}", field="tools")
    asked = tuple(
        asked_tool(tool.function, f"tools[{place}].function", f"tools[{place}].function.parameters")
        for place, tool in enumerate(tools)
    )
    return chosen_tools(asked, choice, parallel)


def read_functions(functions: Sequence[FunctionBody] | None, choice: FunctionChoice | None) -> AskedTools | None:
    """Tools by their older name, of which a turn calls one. None without functions. Raises BadRequest."""
    if not functions:
        if isinstance(choice, FunctionName):
            raise BadRequest("function_call: only allowed with functions", field="function_call")
        return None
    fields = [f"functions[{place}]" for place, _ in enumerate(functions)]
    asked = tuple(asked_tool(one, at, f"{at}.parameters") for one, at in zip(functions, fields, strict=True))
    if not isinstance(choice, FunctionName):
        return chosen_tools(asked, choice, parallel=False)
    _known(choice.name, [one.name for one in asked], "function_call.name")
    return chosen_tools(asked, NamedTool(choice), parallel=False)


def asked_tool(function: FunctionBody, field: str, schema_field: str) -> AskedTool:
    """A function whose name and schema stand in the request at these fields."""
    schema = dict(function.parameters or {})
    schema.setdefault("type", "object")
    if schema["type"] != "object":
        kind = repr(schema["type"])[:50]
        raise BadRequest(f'{schema_field}.type: {kind}; it must be "object"', field=f"{schema_field}.type")
    if not isinstance(schema.setdefault("properties", {}), dict):
        raise BadRequest(f"{schema_field}.properties: is no object", field=f"{schema_field}.properties")
    return AskedTool(function.name, function.description or "", schema, function.strict is True, schema_field)


def chosen_tools(tools: tuple[AskedTool, ...], choice: ToolChoice | None, parallel: bool | None) -> AskedTools:
    """Raises BadRequest for names that are there twice or not at all, naming the field."""
    names = [one.name for one in tools]
    for place, one in enumerate(tools):
        if one.name in names[:place]:
            field = one.field.replace("parameters", "name")
            raise BadRequest(f"{field}: two tools are named {one.name!r}", field=field)
    are_parallel = parallel is not False
    match choice:
        case NamedTool():
            name = _known(choice.function.name, names, "tool_choice.function.name")
            return AskedTools(tools, name, (name,), are_parallel)
        case ChosenTools(allowed):
            allowed_names = tuple(
                _known(one.function.name, names, f"tool_choice.allowed_tools.tools[{place}].function.name")
                for place, one in enumerate(allowed.tools)
            )
            return AskedTools(tools, allowed.mode, tuple(dict.fromkeys(allowed_names)), are_parallel)
    return AskedTools(tools, choice or "auto", tuple(names), are_parallel)


def read_calls(calls: Sequence[CallBody], place: str) -> list[dict[str, Any]]:
    """The calls of a message as a context takes them. Raises BadRequest for arguments that are no JSON object."""
    return [
        read_call(call.id, call.function, f"{place}.tool_calls[{number}].function") for number, call in enumerate(calls)
    ]


def read_call(call_id: str, called: CalledFunction, field: str) -> dict[str, Any]:
    """One of them, whose function stands at that field."""
    arguments = parse_object(called.arguments or "{}", f"{field}.arguments")
    return {"id": call_id, "name": called.name, "arguments": arguments}


def _known(name: str, names: Sequence[str], field: str) -> str:
    if name not in names:
        raise BadRequest(f"{field}: there is no tool {name[:130]!r}; there are {', '.join(names)}", field=field)
    return name
