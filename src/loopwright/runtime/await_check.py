"""Finds an `await` that is missing, or one too many, in what a program does with the sdk and its own async functions.

Never executes anything, and says only what is certain: what an expression is, `program_names` knows or does not. Part
of `program_check`.
"""

import ast
import builtins
from collections.abc import Iterator

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.program_names import Names, Said, own_nodes
from loopwright.sdk.context import Context

_TAKE_ANYTHING = frozenset(
    {"callable", "dir", "getattr", "hasattr", "hash", "id", "isinstance", "setattr", "type", "vars"}
)
"""Builtin functions that can do something with a coroutine."""


def check_awaits(tree: ast.Module, names: Names) -> Iterator[Said]:
    for node in ast.walk(tree):
        yield from _superfluous(node, names)
        yield from _wrong_loop_or_block(node, names)
        if (found := _never_awaited(node, names)) is not None:
            yield found
        for used in _as_values(node, names):
            value = names.value(used)
            if isinstance(value, sdk.Awaitable) and not (value.is_future and _may_hold_future(node, names)):
                yield used, f"{value.name}(…) is not awaited: it is no value yet", _instead(node, used, value.name)
    yield from _left_lying(tree, names)
    yield from _returned_by_main(tree, names)


def _instead(node: ast.AST, used: ast.expr, name: str) -> str:
    if isinstance(node, ast.AsyncFor) and name == Context.generate.__qualname__ and isinstance(used, ast.Call):
        return "write async for … in ctx.stream(…), which gives the text as it comes"
    return f"write (await {ast.unparse(used)})"


def _may_hold_future(node: ast.AST, names: Names) -> bool:
    """Whether a future may stand there as it is: what compares or shows it, or asks whether there is one."""
    if isinstance(node, ast.Call):
        return names.value(node.func) is None  # not one of the sdk's
    return not isinstance(node, ast.Subscript | ast.Starred | ast.For | ast.comprehension | ast.Assign | ast.BinOp)


def _superfluous(node: ast.AST, names: Names) -> Iterator[Said]:
    if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
        function = names.value(node.value.func)
        if function is not None and sdk.returns_at_once(function):
            yield node, f"{sdk.title(function)} needs no await: it returns at once", "take the await away"


def _wrong_loop_or_block(node: ast.AST, names: Names) -> Iterator[Said]:
    """`for` and `with` where `async for` and `async with` are wanted, and the other way round."""
    if isinstance(node, ast.For | ast.AsyncFor):
        word, (plain, waiting), taken = "for", ("__iter__", "__aiter__"), [node.iter]
    elif isinstance(node, ast.With | ast.AsyncWith):
        word, (plain, waiting), taken = "with", ("__enter__", "__aenter__"), [one.context_expr for one in node.items]
    else:
        return
    is_async = isinstance(node, ast.AsyncFor | ast.AsyncWith)
    has, lacks = (plain, waiting) if is_async else (waiting, plain)
    for one in taken:
        value = names.value(one)
        if isinstance(value, sdk.Instance) and hasattr(value.kind, has) and not hasattr(value.kind, lacks):
            wanted, wrong = (word, f"async {word}") if is_async else (f"async {word}", word)
            yield one, f"{value.kind.__name__} is not for {wrong!r}", f"write {wanted}"


def _never_awaited(node: ast.AST, names: Names) -> Said | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        value = names.value(node.value)
        if isinstance(value, sdk.Awaitable):
            if not value.is_future:
                return node, f"{value.name}(…) is never awaited: it does nothing", "write await before it"
            if value.name == "asyncio.gather":
                return node, f"{value.name}(…) is never awaited: main may end before it", "write await before it"
    return None


def _left_lying(tree: ast.Module, names: Names) -> Iterator[Said]:
    """What is given a name that nobody reads."""
    read = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as called) if name not in read:
                value = names.value(called)
                if isinstance(value, sdk.Awaitable) and not value.is_future:
                    yield called, f"{value.name}(…) is never awaited: it does nothing", "write await before it"


def _as_values(node: ast.AST, names: Names) -> Iterator[ast.expr]:
    """Parts of a node whose value it looks at, so that none of them can be a coroutine."""
    match node:
        case ast.Call():
            yield from _looked_at_arguments(node, names)
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.Compare(left=left, ops=operators, comparators=others):
            if not any(isinstance(one, ast.Is | ast.IsNot) for one in operators):
                yield from (left, *others)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            yield from (one.context_expr for one in items)
        case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
            yield value
        case _:
            yield from _looked_at(node)


def _looked_at(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.FormattedValue(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
            yield value
        case ast.If(test=value) | ast.While(test=value) | ast.Assert(test=value) | ast.IfExp(test=value):
            yield value
        case ast.For(iter=value) | ast.AsyncFor(iter=value) | ast.comprehension(iter=value):
            yield value
        case ast.UnaryOp(operand=value):
            yield value


def _looked_at_arguments(node: ast.Call, names: Names) -> Iterator[ast.expr]:
    called = names.value(node.func)
    if called is not None:
        looks = not isinstance(called, sdk.Own) and not sdk.takes_coroutines(called)
    else:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        looks = hasattr(builtins, name) and name not in _TAKE_ANYTHING and not names.binds(node.func)
    if looks:
        yield from (*node.args, *(one.value for one in node.keywords))


def _returned_by_main(tree: ast.Module, names: Names) -> Iterator[Said]:
    """What main returns is the run's result, which is JSON."""
    mains = [one for one in tree.body if isinstance(one, ast.AsyncFunctionDef) and one.name == "main"]
    for node in (one for main in mains for one in own_nodes(main)):
        if isinstance(node, ast.Return) and node.value is not None:
            value = names.value(node.value)
            if isinstance(value, sdk.Awaitable):
                yield node.value, f"main returns {value.name}(…), which is not awaited", "write return await …"
