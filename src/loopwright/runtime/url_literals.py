"""Finds the hosts that a program's HTTP calls name in literals. Never asks whether they are permitted.

Used by `program_check`.
"""

import ast
from collections.abc import Iterator
from urllib.parse import urlsplit

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.program_names import Names
from loopwright.sdk import http

PORTS = {"http": 80, "https": 443}


def http_targets(tree: ast.Module, names: Names) -> Iterator[tuple[ast.expr, str, int]]:
    """The expression of a URL, with the host and port that it names, for each call of the sdk's `http`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (url := _url(node, names)) is not None and (text := names.text(url)):
            target = _target(*text)
            if target is not None:
                yield url, *target


def _url(node: ast.Call, names: Names) -> ast.expr | None:
    """The argument that is the URL."""
    value = names.value(node.func)
    if not isinstance(value, sdk.Function) or value.function.__module__ != http.__name__:
        return None
    signature = sdk.signature(value)
    places = list(signature.parameters) if signature is not None else []
    if "url" not in places:
        return None
    for keyword in node.keywords:
        if keyword.arg == "url":
            return keyword.value
    before = node.args[: places.index("url") + 1]
    if len(before) <= places.index("url") or any(isinstance(one, ast.Starred) for one in before):
        return None
    return before[-1]


def _target(text: str, is_whole: bool) -> tuple[str, int] | None:
    """Host and port, if the text goes as far as to say them."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # what stands for the port is none
        return None
    is_said = is_whole or parts.path or parts.query or parts.fragment
    if parts.scheme not in PORTS or not parts.hostname or not is_said:
        return None
    return parts.hostname, port or PORTS[parts.scheme]
