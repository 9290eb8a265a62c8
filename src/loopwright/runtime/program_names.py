"""Says what a program's expressions are, where they are the sdk's: from imports, annotations and assignments.

Never executes anything. A name counts as known if all that binds it in its scope gives the same. Used by
`program_check`.
"""

import ast
import asyncio
import builtins
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias

import loopwright.sdk
from loopwright.runtime import sdk_surface as sdk

ROOT = "loopwright"
PUBLIC = frozenset((*loopwright.sdk.__all__, "sdk"))

_GIVEN = frozenset((*dir(builtins), "__file__", "__class__", "__annotations__"))
"""Names that no line of a program binds."""

_FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


Said: TypeAlias = tuple[ast.expr | ast.stmt | ast.arg, str, str]
"""What a check says: where, what is wrong, and what to write."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """A name is bound by an expression: to its value, to what `async with` or `async for` makes of it, to each element
    of a list that it writes, to what a decorator gives back, or to what an annotation says. `default` is a
    parameter's."""

    how: Literal["is", "entered", "iterated", "element", "decorated", "annotated"]
    node: ast.expr | None
    default: ast.expr | None = None


_Binding: TypeAlias = _Bound | sdk.Value | None


@dataclass(slots=True, eq=False)
class _Scope:
    """What a function, a class or the module binds."""

    parent: "_Scope | None"
    is_class: bool = False
    bindings: dict[str, list[_Binding]] = field(default_factory=dict)

    def bind(self, name: str, binding: _Binding) -> None:
        self.bindings.setdefault(name, []).append(binding)

    def find(self, name: str) -> list[_Binding]:
        scope: _Scope | None = self
        while scope is not None and name not in scope.bindings:
            scope = scope.parent
            while scope is not None and scope.is_class:  # a method does not see its class's names
                scope = scope.parent
        return [] if scope is None else scope.bindings[name]


class Names:
    """What the expressions of one program are."""

    def __init__(self, tree: ast.Module) -> None:
        binder = _Binder()
        binder.visit(tree)
        self._scopes = binder.scopes
        self._open: set[int] = set()  # bindings that are being looked up

    def value(self, node: ast.expr) -> sdk.Value | None:
        """What an expression is, if it is something of the sdk."""
        match node:
            case ast.Name(id=name):
                return self._named(self._scopes[id(node)].find(name))
            case ast.Attribute(value=owner, attr=name):
                found = self.value(owner)
                return None if found is None else attribute(found, name)
            case ast.Call(func=function, keywords=keywords):
                found = self.value(function)
                return None if found is None else sdk.returned(found, [one.arg for one in keywords if one.arg])
            case ast.Await(value=awaited):
                found = self.value(awaited)
                return found.result if isinstance(found, sdk.Awaitable) else None
            case _:
                return None

    def unknown(self, tree: ast.Module) -> Iterator[ast.Name]:
        """Names that are read and nowhere bound. None where an import or code of its own may bind anything."""
        names = [one for one in ast.walk(tree) if isinstance(one, ast.Name)]
        if any(one.name == "*" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names):
            names = []
        if {one.id for one in names} & {"exec", "globals", "vars", "locals"}:
            names = []
        for one in names:
            scope = self._scopes.get(id(one))  # annotations of * and ** have none
            if scope is not None and not scope.find(one.id) and one.id not in _GIVEN:
                yield one

    def known(self, node: ast.Name) -> list[str]:
        """The names that can be read where that one stands."""
        found = [*_GIVEN]
        scope: _Scope | None = self._scopes[id(node)]
        while scope is not None:
            found += scope.bindings
            scope = scope.parent
        return found

    def binds(self, node: ast.expr) -> bool:
        """Whether the program binds that name itself, so that it is no builtin."""
        return isinstance(node, ast.Name) and bool(self._scopes[id(node)].find(node.id))

    def text(self, node: ast.expr) -> tuple[str, bool] | None:
        """What a text begins with, and whether that is all of it; None for what is no literal. Of a parameter, its
        default."""
        match node:
            case ast.Constant(value=str(text)):
                return text, True
            case ast.JoinedStr(values=[first, *rest]):
                found = self.text(first)
                return None if found is None else (found[0], not rest)
            case ast.BinOp(op=ast.Add(), left=left):
                found = self.text(left)
                return None if found is None else (found[0], False)
            case ast.Name(id=name):
                match self._scopes[id(node)].find(name):
                    case [_Bound(how="is", node=ast.expr() as value) | _Bound(default=ast.expr() as value)]:
                        return self.text(value)
        return None

    def literal(self, node: ast.expr) -> Any:  # noqa: ANN401 (whatever is written there)
        """The value of a literal, or of a name that is bound to one and to nothing else. Raises ValueError."""
        match node:
            case ast.Name(id=name):
                match self._scopes[id(node)].find(name):
                    case [_Bound(how="is", node=ast.expr() as given)] if not isinstance(given, ast.Name):
                        return self.literal(given)
        try:
            return ast.literal_eval(node)
        except (TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(str(error)) from None

    def element(self, node: ast.expr) -> sdk.Value | None:
        """What each element of a list is that is written there, or where its name was given it."""
        match node:
            case ast.ListComp(elt=one) | ast.SetComp(elt=one) | ast.GeneratorExp(elt=one):
                return self.value(one)
            case ast.List(elts=[first, *others]) | ast.Tuple(elts=[first, *others]):
                found = self.value(first)
                return found if all(self.value(one) == found for one in others) else None
            case ast.Name(id=name):
                match self._scopes[id(node)].find(name):
                    case [_Bound(how="is", node=ast.ListComp() | ast.List() | ast.Tuple() as given)]:
                        return self.element(given)
        return None

    def _named(self, bindings: list[_Binding]) -> sdk.Value | None:
        if id(bindings) in self._open:
            return None  # bound by way of itself
        self._open.add(id(bindings))
        try:
            found = [self._bound(one) for one in bindings]
        finally:
            self._open.discard(id(bindings))
        return found[0] if found and all(one == found[0] for one in found) else None

    def _bound(self, binding: _Binding) -> sdk.Value | None:
        if not isinstance(binding, _Bound):
            return binding
        if binding.how == "element":
            return None if binding.node is None else self.element(binding.node)
        value = None if binding.node is None else self.value(binding.node)
        match binding.how:
            case "is":
                return value
            case "annotated":
                return sdk.Instance(value.kind) if isinstance(value, sdk.Class) else None
            case "entered":
                return None if value is None else sdk.entered(value)
            case "iterated":
                return None if value is None else sdk.iterated(value)
            case "decorated":
                return None if value is None else sdk.returned(value)


def attributes(value: sdk.Value) -> frozenset[str] | None:
    """The attributes that a value has; None if that cannot be told."""
    return PUBLIC if _is_root(value) else sdk.names_of(value)


def attribute(value: sdk.Value, name: str) -> sdk.Value | None:
    """What `value.name` is, if it is the sdk's."""
    return _public_value(name) if _is_root(value) else sdk.attribute(value, name)


def unknown_imports(node: ast.ImportFrom) -> Iterator[tuple[ast.alias, frozenset[str]]]:
    """Names that the sdk does not have, each with those that it has there."""
    module = _module(node.module) if node.level == 0 else None
    if module is None:
        return
    known = PUBLIC if node.module == ROOT else frozenset(dir(module))
    for alias in node.names:
        if alias.name != "*" and alias.name not in known and _module(f"{node.module}.{alias.name}") is None:
            yield alias, known


class _Binder(ast.NodeVisitor):
    """Notes in which scope each name stands, and what is bound there."""

    def __init__(self) -> None:
        self._scope = _Scope(None)
        self.scopes: dict[int, _Scope] = {}  # by the id of a node that is a name

    def visit_Name(self, node: ast.Name) -> None:
        self.scopes[id(node)] = self._scope
        if not isinstance(node.ctx, ast.Load):
            self._scope.bind(node.id, None)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            name = alias.name if alias.asname else root
            value = sdk.Module(asyncio) if name == "asyncio" else sdk.value_of(_module(name))
            self._scope.bind(alias.asname or root, value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._scope.bind(alias.asname or alias.name, _imported(node, alias.name))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, _Bound("is", node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit_all([node.annotation, *([node.value] if node.value else [])])
        self._bind(node.target, _Bound("is", node.value))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target, _Bound("is", node.value))

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, _Bound("entered", item.context_expr))
        self.generic_visit_all(node.body)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._bind(node.target, _Bound("iterated", node.iter))
        self.generic_visit_all([*node.body, *node.orelse])

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._bind(node.target, _Bound("element", node.iter))
        self.generic_visit_all([*node.body, *node.orelse])

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        self._bind(node.target, _Bound("iterated" if node.is_async else "element", node.iter))
        self.generic_visit_all(node.ifs)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bind(node.name, None)
        self.generic_visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self._inside(_Scope(self._scope, is_class=True), node.body)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        scope: _Scope | None = self._scope
        while scope is not None:  # it may be bound from here in any of them
            for name in node.names:
                scope.bind(name, None)
            scope = scope.parent

    visit_Nonlocal = visit_Global

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
            self._scope.bind(node.name, None)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            self._scope.bind(node.rest, None)
        super().generic_visit(node)

    def generic_visit_all(self, nodes: "list[ast.stmt] | list[ast.AST] | list[ast.expr]") -> None:
        for node in nodes:
            self.visit(node)

    def _bind(self, target: ast.expr, binding: _Bound) -> None:
        """Binds a name; what else is assigned to binds nothing that is known."""
        if isinstance(target, ast.Name):
            self.scopes[id(target)] = self._scope
            self._scope.bind(target.id, binding)
        else:
            self.visit(target)

    def _function(self, node: _FunctionNode) -> None:
        arguments = node.args
        scope = _Scope(self._scope)
        if not isinstance(node, ast.Lambda):
            self._scope.bind(node.name, _defined(node))
            self.generic_visit_all([*node.decorator_list, *([node.returns] if node.returns else [])])
        named = [*arguments.posonlyargs, *arguments.args]
        defaults: list[ast.expr | None] = [None] * (len(named) - len(arguments.defaults))
        pairs = zip(named, [*defaults, *arguments.defaults], strict=True)
        for argument, default in [*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]:
            self.generic_visit_all([one for one in (argument.annotation, default) if one is not None])
            scope.bind(argument.arg, _Bound("annotated", argument.annotation, default))
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                scope.bind(rest.arg, None)
        self._inside(scope, [node.body] if isinstance(node, ast.Lambda) else node.body)

    def _inside(self, scope: _Scope, body: "list[ast.stmt] | list[ast.expr]") -> None:
        outer, self._scope = self._scope, scope
        self.generic_visit_all(body)
        self._scope = outer


def own_nodes(function: _FunctionNode) -> Iterator[ast.AST]:
    """All that is in a function, and not in one inside it."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _defined(function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Binding:
    if len(function.decorator_list) == 1:
        return _Bound("decorated", function.decorator_list[0])
    return sdk.Own(function.name) if _is_coroutine(function) else None


def _is_coroutine(function: _FunctionNode) -> bool:
    """Whether a call of it has to be awaited, whatever a decorator may do."""
    if not isinstance(function, ast.AsyncFunctionDef) or function.decorator_list:
        return False
    return not any(isinstance(one, ast.Yield | ast.YieldFrom) for one in own_nodes(function))


def _is_root(value: sdk.Value) -> bool:
    return isinstance(value, sdk.Module) and value.module.__name__ == ROOT


def _public_value(name: str) -> sdk.Value | None:
    return sdk.value_of(getattr(loopwright.sdk, name, None)) if name in PUBLIC else None


def _imported(node: ast.ImportFrom, name: str) -> sdk.Value | None:
    if node.module == "asyncio":
        return sdk.attribute(sdk.Module(asyncio), name)
    module = _module(node.module) if node.level == 0 else None
    if module is None:
        return None
    if node.module == ROOT:
        return _public_value(name)
    return sdk.value_of(getattr(module, name, None) or _module(f"{node.module}.{name}"))


def _module(name: str | None) -> ModuleType | None:
    """A module of the sdk, or its root."""
    if name != ROOT and not f"{name}.".startswith(f"{sdk.SDK}."):
        return None
    try:
        return importlib.import_module(str(name))
    except ImportError:
        return None
