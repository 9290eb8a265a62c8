"""Finds what a program's calls name outside of it: hosts, tools, children, stores. Never decides what is permitted.

Used by `program_check`, which asks the program's permissions.
"""

import ast
from collections.abc import Callable, Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.addresses import canonical_host
from loopwright.runtime.permissions import ANY_SOURCE, OWN_SOURCE, Permissions
from loopwright.runtime.program_names import Names
from loopwright.sdk import children, http, messaging, store, tools

PORTS = {"http": 80, "https": 443}

Check: TypeAlias = Callable[[Permissions], None]
"""Raises PermissionDenied."""


def outside_uses(tree: ast.Module, names: Names) -> Iterator[tuple[ast.expr, Check]]:
    """For each call that reaches out: the expression that names where to, and what must be permitted."""
    own = {one.name for one in tree.body if isinstance(one, ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (value := names.value(node.func)) is None:
            continue
        argument, check_of = _use(node, value)
        if argument is None:
            continue
        text = names.text(argument)
        check = check_of(*text) if text is not None else None
        if check_of is _child_check and isinstance(argument, ast.Name) and argument.id in own:
            check = _own_child
        if check is not None:
            yield argument, check


def _use(node: ast.Call, value: sdk.Value) -> tuple[ast.expr | None, Callable[[str, bool], Check | None]]:
    match value:
        case sdk.Class(kind) if kind is store.Store:
            return _argument(node, value, "name"), _store_check
        case sdk.Class(kind) if kind is messaging.subscribe:
            return _argument(node, value, "topic"), _channel_check
        case sdk.Function(function) if function.__module__ == http.__name__:
            return _argument(node, value, "url"), _host_check
        case sdk.Function(function) if function.__module__ == messaging.__name__:
            return _argument(node, value, "topic") or _argument(node, value, "queue"), _channel_check
        case sdk.Function(function) if function is tools.call:
            return _argument(node, value, "name"), _tool_check
        case sdk.Function(function) if function is children.spawn:
            return _argument(node, value, "program"), _child_check
    return None, _channel_check


def _argument(node: ast.Call, value: sdk.Value, name: str) -> ast.expr | None:
    """The expression for the parameter of that name."""
    signature = sdk.signature(value)
    places = list(signature.parameters) if signature is not None else []
    if name not in places:
        return None
    for keyword in node.keywords:
        if keyword.arg == name:
            return keyword.value
    before = node.args[: places.index(name) + 1]
    if len(before) <= places.index(name) or any(isinstance(one, ast.Starred) for one in before):
        return None
    return before[-1]


def _host_check(text: str, is_whole: bool) -> Check | None:
    """Of host and port, if the text goes as far as to say them."""
    try:
        parts = urlsplit(text)
        port = parts.port
        host = canonical_host(parts.hostname or "")
    except ValueError:  # what stands for the port, or the host, is none
        return None
    is_said = is_whole or parts.path or parts.query or parts.fragment
    if parts.scheme not in PORTS or not is_said:
        return None
    return lambda permissions: permissions.check_http(host, port or PORTS[parts.scheme])


def _channel_check(text: str, is_whole: bool) -> Check | None:
    return (lambda permissions: permissions.check_channel(text)) if is_whole else None


def _tool_check(text: str, is_whole: bool) -> Check | None:
    return (lambda permissions: permissions.check_tool(text)) if is_whole else None


def _store_check(text: str, is_whole: bool) -> Check | None:
    """A store without a name is the run's own."""
    return (lambda permissions: permissions.check_store(text)) if is_whole and text else None


def _child_check(text: str, is_whole: bool) -> Check | None:
    """Of a deployed program's name, or of a program's text, which has lines."""
    if "\n" in text:
        return lambda permissions: permissions.check_child(ANY_SOURCE)
    return (lambda permissions: permissions.check_child(text)) if is_whole else None


def _own_child(permissions: Permissions) -> None:
    permissions.check_child(OWN_SOURCE)
