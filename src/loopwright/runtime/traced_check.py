"""Finds what keeps a sampler of a program from being traced: looking at values that are there only when it runs.

Never executes anything, and says only what is certain. Part of `program_check`.
"""

import ast
from collections.abc import Iterator

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.program_names import Names, Said, own_nodes
from loopwright.sdk import tensor

_HINT = "write it with tensor.where, or pass sampler_fallback=True, which is slower"


def check_samplers(tree: ast.Module, names: Names) -> Iterator[Said]:
    """Of the functions of the file's top level that are given as `sampler`, and are not to run as Python."""
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    seen: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(names.value(node.func), sdk.Function):
            continue
        given = {one.arg: one.value for one in node.keywords}
        sampler = given.get("sampler")
        if not isinstance(sampler, ast.Name) or "sampler_fallback" in given or None in given:
            continue
        function = functions.get(sampler.id)
        if isinstance(function, ast.AsyncFunctionDef):
            yield sampler, f"a sampler is no async function, as {sampler.id} is", "write def"
        elif function is not None and sampler.id not in seen:
            seen.add(sampler.id)
            yield from _Traced(function, names).looks()


class _Traced:
    """One sampler: which of its names are tensors, and where it looks at one."""

    def __init__(self, function: ast.FunctionDef, names: Names) -> None:
        self._function, self._names = function, names
        parameters = [one.arg for one in function.args.args]
        self._tensors = set(parameters[:1])
        self._states = set(parameters[1:2])  # dicts of tensors
        self._follow()

    def looks(self) -> Iterator[Said]:
        for node in own_nodes(self._function):
            for looked in self._looked_at(node):
                if self._is_tensor(looked):
                    yield looked, f"the sampler {self._function.name} looks at a value that is not there yet", _HINT

    def _looked_at(self, node: ast.AST) -> Iterator[ast.expr]:
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                yield test
            case ast.BoolOp(values=[*values, _]):
                yield from values
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield operand
            case ast.For(iter=iter) | ast.comprehension(iter=iter):
                yield iter
            case ast.Call(func=ast.Name(id="bool" | "float" | "int" | "list" | "sorted" | "sum" | "range"), args=args):
                yield from args

    def _follow(self) -> None:
        """Names that are only ever given tensors are tensors, whatever order they are given in."""
        given: dict[str, list[ast.expr]] = {}
        for node in own_nodes(self._function):
            if isinstance(node, ast.Assign):
                for name in (one.id for one in node.targets if isinstance(one, ast.Name)):
                    given.setdefault(name, []).append(node.value)
        is_new = True
        while is_new:
            found = {name for name, values in given.items() if all(map(self._is_tensor, values))}
            is_new = not found <= self._tensors
            self._tensors |= found

    def _is_tensor(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._tensors
            case ast.Subscript(value=ast.Name(id=name)) if name in self._states:
                return True
            case ast.Subscript(value=value):
                return self._is_tensor(value)
            case ast.BinOp(left=left, right=right):
                return self._is_tensor(left) or self._is_tensor(right)
            case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
                return self._is_tensor(operand)
            case ast.Compare(left=left, ops=operators, comparators=others):
                is_of_values = not any(isinstance(one, ast.Is | ast.IsNot | ast.In | ast.NotIn) for one in operators)
                return is_of_values and any(map(self._is_tensor, (left, *others)))
            case ast.Call():
                made = self._names.value(node)
                return isinstance(made, sdk.Instance) and made.kind is tensor.Tensor
        return False
