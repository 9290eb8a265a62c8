"""Finds what cannot be done with values of the sdk: going through them, taking a part, operators, and calling them.

Never executes anything, and says only what is certain. Part of `program_check`.
"""

import ast
import dataclasses
from collections.abc import Iterator

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.program_names import Names, Said

_GO_THROUGH = frozenset(
    {"all", "any", "dict", "enumerate", "frozenset", "iter", "list", "max", "min", "set", "sorted", "sum", "tuple"}
)
"""Builtin functions that go through their first argument."""

_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.BitOr: "or", ast.BitAnd: "and",
}  # fmt: skip
_PASS_THROUGH = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Tuple)


def check_uses(tree: ast.Module, names: Names) -> Iterator[Said]:
    for node in ast.walk(tree):
        yield from _gone_through(node, names)
        yield from _not_entered(node, names)
        match node:
            case ast.Subscript(value=value, ctx=ast.Load()) if kind := _lacking(value, names, "__getitem__"):
                yield node, f"a {kind.__name__} has no parts to take with []", _instead(kind)
            case ast.Call(func=value) if kind := _lacking(value, names, "__call__"):
                yield node, f"a {kind.__name__} is no function", ""
            case ast.BinOp():
                yield from _combined(node, names)
            case ast.Compare():
                yield from _compared(node, names)


def _kind(node: ast.expr, names: Names) -> type | None:
    value = names.value(node)
    return value.kind if isinstance(value, sdk.Instance) else None


def _lacking(node: ast.expr, names: Names, *methods: str) -> type | None:
    """The class of a value that has none of the methods."""
    kind = _kind(node, names)
    is_open = kind is None or hasattr(kind, "__getattr__")
    return None if is_open or not {*methods}.isdisjoint(dir(kind)) else kind


def _instead(kind: type) -> str:
    return "its .text has" if "text" in (sdk.names_of(sdk.Instance(kind)) or ()) else ""


def _gone_through(node: ast.AST, names: Names) -> Iterator[Said]:
    """Where something is gone through without awaiting."""
    match node:
        case ast.For(iter=taken) | ast.comprehension(iter=taken, is_async=0):
            word = "for"
        case ast.Call(func=ast.Name(id=name) as function, args=[taken, *_]) if name in _GO_THROUGH:
            word = name
            if names.binds(function):
                return
        case _:
            return
    kind = _lacking(taken, names, "__iter__", "__getitem__")
    if kind is not None and hasattr(kind, "__aiter__"):
        if word != "for":
            yield taken, f"{kind.__name__} is not for {word!r}: its parts are awaited", "write [one async for one in …]"
        elif isinstance(node, ast.comprehension):
            yield taken, f"{kind.__name__} is not for 'for'", "write async for"
    elif kind is not None:
        yield taken, f"a {kind.__name__} has no parts to go through", _instead(kind)


def _not_entered(node: ast.AST, names: Names) -> Iterator[Said]:
    """What has to be entered by a block before it can be gone through."""
    if isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call):
        kind = _kind(node.iter, names)
        if kind is not None and hasattr(kind, "__aenter__") and hasattr(kind, "__anext__"):
            word = ast.unparse(node.iter.func)
            yield node.iter, f"{word}(…) is not entered", f"write async with {word}(…) as it: async for … in it"


def _combined(node: ast.BinOp, names: Names) -> Iterator[Said]:
    name = _OPERATORS.get(type(node.op))
    for one, other, method in ((node.left, node.right, f"__{name}__"), (node.right, node.left, f"__r{name}__")):
        kind = _lacking(one, names, method) if name else None
        if kind is not None and isinstance(other, _PASS_THROUGH):
            yield one, f"a {kind.__name__} is not for an operator", _instead(kind).replace("has", "is")


def _compared(node: ast.Compare, names: Names) -> Iterator[Said]:
    for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
        if isinstance(operator, ast.Eq | ast.NotEq):
            for one, other in ((left, right), (right, left)):
                kind = _kind(one, names)
                if kind is not None and _is_like_its_own_alone(kind) and isinstance(other, ast.Constant):
                    yield one, f"a {kind.__name__} never equals {other.value!r}", _instead(kind).replace("has", "may")
        elif isinstance(operator, ast.In | ast.NotIn):
            kind = _lacking(right, names, "__contains__", "__iter__", "__getitem__")
            if kind is not None:
                yield right, f"a {kind.__name__} has nothing in it to look for", _instead(kind)


def _is_like_its_own_alone(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or not any("__eq__" in vars(one) for one in kind.__mro__[:-1])
