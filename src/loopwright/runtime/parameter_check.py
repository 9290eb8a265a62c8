"""Finds parameters of main that no argument can be, for arguments are JSON. Never executes anything.

What a parameter's value is, `Program.check_arguments` sees when it comes; here it is what no value can be. Part of
`program_check`.
"""

import ast
from collections.abc import Iterator

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.import_paths import dotted, imported_paths
from loopwright.runtime.program_names import Names, Said

_BUILTINS = frozenset({"bytes", "bytearray", "set", "frozenset", "complex"})
_STDLIB = frozenset(
    {"datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "pathlib.Path", "decimal.Decimal"}
    | {"uuid.UUID", "fractions.Fraction", "collections.Counter", "collections.deque"}
)


def check_parameters(tree: ast.Module, names: Names) -> Iterator[Said]:
    imported = imported_paths(tree)
    classes = {one.name for one in tree.body if isinstance(one, ast.ClassDef) and not one.bases and not one.keywords}
    for main in (one for one in tree.body if isinstance(one, ast.AsyncFunctionDef) and one.name == "main"):
        for one in (*main.args.args, *main.args.kwonlyargs):
            for part in _parts(one.annotation):
                if (kind := _no_json(part, names, imported, classes)) is not None:
                    hint = f"write str, int, float, bool, list or dict, and make the {kind} inside main"
                    yield one, f"{one.arg}: main's arguments are JSON, which has no {kind}", hint


def _parts(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The types that an annotation names."""
    match annotation:
        case ast.Name() | ast.Attribute():
            yield annotation
        case ast.BinOp(left=left, right=right):
            yield from _parts(left)
            yield from _parts(right)
        case ast.Subscript(value=outer, slice=inner):
            if ast.unparse(outer).rpartition(".")[2] not in ("Literal", "Annotated"):
                yield from _parts(outer)
                yield from _parts(inner)
        case ast.Tuple(elts=parts):
            for one in parts:
                yield from _parts(one)


def _no_json(part: ast.expr, names: Names, imported: dict[str, str], classes: set[str]) -> str | None:
    """The name of a type that no JSON value has."""
    if isinstance(value := names.value(part), sdk.Class):
        return value.kind.__name__
    path = dotted(part, imported)
    if path in _STDLIB:
        return path.rpartition(".")[2]
    if isinstance(part, ast.Name) and part.id in _BUILTINS and not names.binds(part):
        return part.id
    return part.id if isinstance(part, ast.Name) and part.id in classes else None
