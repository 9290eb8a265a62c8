"""What the sdk offers a program, by inspection: names, attributes, signatures, and what calls give back.

Never reads a program. Used by `program_check`, and by the reference of the sdk.
"""

import ast
import asyncio
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from loopwright.sdk.argument_check import behind

SDK = "loopwright.sdk"
FUTURES = frozenset({"gather", "create_task", "ensure_future", "shield"})
"""Functions of asyncio that give a future."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the sdk, or asyncio."""

    module: types.ModuleType


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the sdk."""

    kind: type


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the sdk; `is_bound` if its first parameter is given."""

    function: types.FunctionType
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class of the sdk."""

    kind: type


@dataclass(frozen=True, slots=True)
class Awaitable:
    """What an async function returned, not awaited yet. `name` is the function's. A future goes on by itself, and may
    be asked how far it is."""

    name: str
    result: "Value | None"
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class Own:
    """An async function that is not the sdk's: of the program itself, or of asyncio; or one that gives a future."""

    name: str
    is_future: bool = False


Value: TypeAlias = Module | Class | Function | Instance | Awaitable | Own


def title(value: Value) -> str:
    """What a value is called in a message."""
    match value:
        case Module(module):
            return module.__name__.rpartition(".")[2]
        case Class(kind) | Instance(kind):
            return kind.__name__
        case Function(function):
            return function.__qualname__
        case Awaitable(name) | Own(name):
            return name


def value_of(thing: object) -> Value | None:
    """A thing of the sdk as a value; None for anything else."""
    if isinstance(thing, types.ModuleType):
        return Module(thing) if thing.__name__.partition(".")[0] == "loopwright" else None
    if not getattr(thing, "__module__", "").startswith(SDK):
        return None
    if inspect.isclass(thing):
        return Class(thing)
    if isinstance(thing, types.FunctionType):
        return Function(thing)
    return Instance(type(thing)) if type(thing).__module__.startswith(SDK) else None


def names_of(value: Value) -> frozenset[str] | None:
    """The attributes that a value has; None if that cannot be told."""
    match value:
        case Module(module):
            return None if module is asyncio else frozenset(dir(module))
        case Class(kind):
            return frozenset(dir(kind))
        case Instance(kind):
            return None if hasattr(kind, "__getattr__") else _instance_names(kind)
        case _:
            return None


def attribute(value: Value, name: str) -> Value | None:
    """What `value.name` is, if it is the sdk's."""
    match value:
        case Module(module) if module is asyncio:
            is_async = inspect.iscoroutinefunction(getattr(asyncio, name, None))
            return Own(f"asyncio.{name}", name in FUTURES) if is_async or name in FUTURES else None
        case Module(module):
            return value_of(getattr(module, name, None))
        case Class(kind) | Instance(kind):
            found = inspect.getattr_static(kind, name, None)
            function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            if isinstance(function, types.FunctionType):
                is_bound = isinstance(found, classmethod) or (isinstance(value, Instance) and function is found)
                return Function(function, is_bound)
            if isinstance(value, Class):
                return None
            if isinstance(found, property) and found.fget is not None:
                return _instance_of(_hints(found.fget).get("return"))
            return _instance_of(_hints(kind).get(name))
        case _:
            return None


def plain_type(value: Value, name: str) -> type | None:
    """Of an attribute of an instance that is a text, a number or a list of something, and so no function."""
    if not isinstance(value, Instance):
        return None
    found = inspect.getattr_static(value.kind, name, None)
    is_computed = isinstance(found, property) and found.fget is not None
    hint = _hints(found.fget).get("return") if is_computed else _hints(value.kind).get(name)
    kind = typing.get_origin(hint) or hint
    return kind if kind in (str, int, float, bool, tuple, list, dict) else None


def returned(value: Value, given: Collection[str] = ()) -> Value | None:
    """What calling the value gives; `given` are the names of keywords, which choose among overloads."""
    match value:
        case Class(kind):
            return Instance(kind)
        case Instance(kind) if (call := attribute(value, "__call__")) is not None:
            result = returned(call)
            return Awaitable(kind.__name__, result.result) if isinstance(result, Awaitable) else result
        case Function(function):
            result = _instance_of(_hints(_overload(function, given)).get("return"))
            return Awaitable(function.__qualname__, result) if inspect.iscoroutinefunction(behind(function)) else result
        case Own(name, is_future):
            return Awaitable(name, None, is_future)
        case _:
            return None


def _overload(function: types.FunctionType, given: Collection[str]) -> Callable[..., Any]:
    """The first of its overloads whose needs are given, or the function itself."""
    for one in typing.get_overloads(function):
        parameters = inspect.signature(one).parameters.values()
        if all(one.name in given for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty):
            return one
    return function


def returns_at_once(value: Value) -> bool:
    """Whether what a call of the value gives can certainly not be awaited."""
    match value:
        case Class(kind):
            return not hasattr(kind, "__await__")
        case Function(function) if not inspect.iscoroutinefunction(behind(function)):
            return _is_plain(_hints(function).get("return"))
        case _:
            return False


def takes_coroutines(value: Value) -> bool:
    """Whether a parameter of the value may be something to await."""
    found = signature(value)
    return found is None or any(
        re.search("Awaitable|Coroutine|Future|Task", str(one.annotation)) for one in found.parameters.values()
    )


def signature(value: Value) -> inspect.Signature | None:
    """How the value is called, without a first parameter that is given. None if it cannot be told."""
    match value:
        case Class(kind):
            try:
                return inspect.signature(kind)
            except (TypeError, ValueError):  # an enumeration or an exception, say
                return None
        case Function(function, is_bound):
            found = inspect.signature(function)
            return found.replace(parameters=list(found.parameters.values())[is_bound:])
        case _:
            return None


def options_of(parameter: inspect.Parameter) -> frozenset[str] | None:
    """The keywords that a ** parameter takes; None if it takes any."""
    if typing.get_origin(parameter.annotation) is not typing.Unpack:
        return None
    return frozenset(typing.get_type_hints(typing.get_args(parameter.annotation)[0]))


def entered(value: Value) -> Value | None:
    """What `async with value as …` binds."""
    return returned_by(value, "__aenter__")


def iterated(value: Value) -> Value | None:
    """What `async for … in value` binds."""
    return returned_by(value, "__anext__")


def returned_by(value: Value, method: str) -> Value | None:
    """What an async method of an instance gives."""
    if not isinstance(value, Instance) or (found := attribute(value, method)) is None:
        return None
    result = returned(found)
    return result.result if isinstance(result, Awaitable) else None


def _is_plain(hint: Any) -> bool:  # noqa: ANN401 (a type, in whatever form)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return all(map(_is_plain, typing.get_args(hint)))
    kind = typing.get_origin(hint) or hint
    return inspect.isclass(kind) and kind not in (object, typing.Any) and not hasattr(kind, "__await__")


def _instance_of(hint: Any) -> Value | None:  # noqa: ANN401 (a type, in whatever form)
    arguments = [one for one in typing.get_args(hint) if one is not type(None)]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = arguments[0] if len(arguments) == 1 else None
    if inspect.isclass(hint) and hint.__module__.startswith(SDK):
        return Instance(hint)
    return None


@functools.cache
def _hints(thing: Any) -> dict[str, Any]:  # noqa: ANN401 (a function or a class)
    try:
        return typing.get_type_hints(thing)
    except (NameError, TypeError):  # a name that only type checkers know
        return {}


@functools.cache
def _instance_names(kind: type) -> frozenset[str]:
    """Of the class and its bases, fields, and what its methods assign to self."""
    names = set(dir(kind))
    for one in kind.__mro__:
        names |= set(vars(one).get("__annotations__", {}))
        if one.__module__.startswith(SDK):
            names |= _assigned_names(one)
    return frozenset(names)


def _assigned_names(kind: type) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
