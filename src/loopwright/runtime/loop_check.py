"""Finds loops of a program that nothing in them can end. Never executes one. Part of `program_check`."""

import ast
from collections.abc import Iterator

from loopwright.runtime.program_names import Names, Said

_MAY_CHANGE: tuple[type[ast.AST], ...] = (
    *(ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr),
    *(ast.Delete, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.Attribute, ast.Subscript),
)
_MAY_LEAVE = (ast.Break, ast.Return, ast.Raise, ast.Assert)


def check_loops(tree: ast.Module, names: Names) -> Iterator[Said]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.While):
            continue
        inside = [one for part in node.body for one in ast.walk(part)]
        tested = list(ast.walk(node.test))
        if any(isinstance(one, _MAY_LEAVE) for one in inside):
            continue
        if not any(isinstance(one, _MAY_CHANGE) for one in (*inside, *tested)):
            yield node, "nothing in this loop can end it", "await what it waits for, asyncio.sleep(0.1) at least"
        elif isinstance(node.test, ast.Constant) and node.test.value and not _may_stop(inside):
            yield node, "this loop has no break, no return and no await", "it runs until the limit cpu_seconds ends it"


def _may_stop(inside: list[ast.AST]) -> bool:
    """Whether a call may raise what ends the loop, or something else may run meanwhile."""
    waits = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith, ast.Try)
    called = [one for one in inside if isinstance(one, ast.Call)]
    return any(isinstance(one, waits) for one in inside) or any(_may_raise(one) for one in called)


def _may_raise(call: ast.Call) -> bool:
    """Whether the end of the loop may be meant by it, as by `next(…)`: by anything but what lists and texts do."""
    harmless = {"append", "add", "extend", "print", "len", "str", "int", "range", "log", "emit", "emit_text"}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name not in harmless
