"""Finds what a program gives to functions of the sdk that they do not take: literals, and values of the sdk itself.

Never executes anything, and says only what is certain. What a function takes, its own check says (`argument_check`),
and how large a number may be, the call's fields. Part of `program_check`.
"""

import ast
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loopwright.core.calls import Generate, Sampling
from loopwright.core.errors import BadRequest
from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.program_names import Names, Said, own_nodes
from loopwright.sdk import context, messaging, output, tools
from loopwright.sdk.argument_check import behind, refusal, shown
from loopwright.sdk.json_fault import json_fault
from loopwright.sdk.options import SegmentOptions

_UNKNOWN = object()
_JSON = {
    behind(function)
    for function in (output.emit, messaging.push, messaging.broadcast, context.Context.tool_result)
}  # fmt: skip
"""Functions whose `value` is any JSON."""


def check_given(tree: ast.Module, names: Names) -> Iterator[Said]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (function := _function(names.value(node.func))) is not None:
            for name, expression in _given(node, function):
                yield from _wrong(function, name, expression, names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_tool(node, names):
            yield from _untyped(node)
    yield from _results(tree, names)


def is_tool(function: ast.FunctionDef | ast.AsyncFunctionDef, names: Names) -> bool:
    """Whether the program declares it as a tool."""
    values = map(names.value, function.decorator_list)
    return any(isinstance(one, sdk.Function) and one.function is tools.tool for one in values)


def _untyped(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Said]:
    """Parameters of a tool that no schema can describe."""
    taken = function.args
    for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs):
        if one.annotation is None:
            yield one, f"the tool {function.name}: {one.arg} has no type", f"write {one.arg}: str, for example"


def _function(value: sdk.Value | None) -> sdk.Function | None:
    match value:
        case sdk.Function():
            return value
        case sdk.Class(kind) if inspect.isfunction(made := vars(kind).get("__init__")):
            return sdk.Function(made, is_bound=True)
        case _:
            return None


def _given(node: ast.Call, function: sdk.Function) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a call, by name."""
    signature = sdk.signature(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [one.name for one in signature.parameters.values() if one.kind in kinds] if signature else []
    for name, expression in zip(places, node.args, strict=False):
        if isinstance(expression, ast.Starred):
            break
        yield name, expression
    yield from ((one.arg, one.value) for one in node.keywords if one.arg is not None)


def _wrong(function: sdk.Function, name: str, expression: ast.expr, names: Names) -> Iterator[Said]:
    value = _value(expression, function, names)
    if value is _UNKNOWN:
        if name == "value" and behind(function.function) in _JSON:
            yield from _no_json(expression, names, f"what {sdk.title(function)} takes")
        return
    error = refusal(function.function, name, value) or _beyond(function.function, name, value)
    if error is not None:
        yield expression, error.message, error.hint
    elif name == "value" and behind(function.function) in _JSON and (fault := json_fault(value, TypeError())):
        yield expression, ": ".join(part for part in fault if part), f"{sdk.title(function)} takes JSON"


def _value(expression: ast.expr, function: sdk.Function, names: Names) -> object:
    """A literal as it is, and a stand-in for a value of the sdk."""
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    match names.value(expression):
        case sdk.Instance(kind):
            return _stand_in(kind)
        case sdk.Awaitable(name) if sdk.takes_coroutines(function):  # elsewhere the check of awaits says it
            return _Coroutine(name)
        case sdk.Module(module):
            return module
        case _:
            return _UNKNOWN


@functools.cache
def _stand_in(kind: type) -> object:
    """Something of that class that nobody made."""
    members = {
        "__new__": lambda cls: object.__new__(cls),
        "__init__": lambda self: None,
        "__del__": lambda self: None,
        "__repr__": lambda self: f"a {kind.__name__}",
    }
    if "text" in (sdk.names_of(sdk.Instance(kind)) or ()):
        members["text"] = property(lambda self: "")  # type: ignore[assignment]
    return type(kind.__name__, (kind,), members)()


class _Coroutine:
    """What an async function returned."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __await__(self) -> Iterator[None]:
        raise AssertionError("nobody awaits what is only looked at")

    def __repr__(self) -> str:
        return f"{self._name}(…)"


def _beyond(function: Callable[..., Any], name: str, value: object) -> BadRequest | None:
    """Why an option of a segment is out of its limits."""
    options = [one for one in inspect.signature(function).parameters.values() if sdk.options_of(one)]
    if value is None or name not in _limits() or not any(name in (sdk.options_of(one) or ()) for one in options):
        return None
    try:
        msgspec.convert(value, _limits()[name])
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at")[0]
        return BadRequest(f"{name}: {shown(value)} is refused: {reason}", field=name)
    return None


@functools.cache
def _limits() -> dict[str, Any]:
    """What the fields of the call take of those options that have limits, by name."""
    fields = {
        name: hint
        for kind in (Generate, Sampling)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    }
    found = {name: fields[name] for name in typing.get_type_hints(SegmentOptions) if name in fields}
    for name in ("logit_bias", "allowed", "grammar", "sampler"):  # which the sdk rewrites
        found.pop(name, None)
    found["stop"] = found["stop"] | typing.get_args(typing.get_args(fields["stop"])[0])[0]
    found["until"] = typing.get_args(typing.get_args(fields["stop"])[0])[0]
    return found


def _results(tree: ast.Module, names: Names) -> Iterator[Said]:
    """What main gives back: the run's result, which is JSON."""
    for main in (one for one in tree.body if isinstance(one, ast.AsyncFunctionDef) and one.name == "main"):
        for node in own_nodes(main):
            if isinstance(node, ast.Yield | ast.YieldFrom):
                yield node, "main yields, and a run has one result", "write emit for what comes before it"
            elif isinstance(node, ast.Return) and node.value is not None:
                yield from _no_json(node.value, names, "main's result")


def _no_json(expression: ast.expr, names: Names, title: str) -> Iterator[Said]:
    """A value of the sdk that JSON has not, by itself or in what is written around it."""
    inside: list[ast.expr | None] = []
    match expression:
        case ast.Dict(values=values):
            inside = [*values]
        case ast.List(elts=values) | ast.Tuple(elts=values):
            inside = [*values]
    for one in inside:
        if one is not None:
            yield from _no_json(one, names, title)
    value = names.value(expression)
    if isinstance(value, sdk.Instance) and (fault := json_fault(_stand_in(value.kind), TypeError())):
        yield expression, fault[1], f"{title} is JSON"
