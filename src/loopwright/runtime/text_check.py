"""Finds values of the sdk that stand where their text, or a number, is meant: in an f-string, in `json.loads`, called.

Never executes anything, and says only what is certain: what is shown to a person may be shown whole. Part of
`program_check`.
"""

import ast
from collections.abc import Iterator

from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.import_paths import dotted, imported_paths
from loopwright.runtime.program_names import Names, Said

_SHOWING = frozenset({"print", "log", "debug", "info", "warning", "error", "exception", "repr", "pprint"})
"""Functions that show a person something."""
_CONVERSIONS = {
    "int": ("__int__", "__index__", "__trunc__"),
    "float": ("__float__", "__index__"),
    "len": ("__len__",),
    "round": ("__round__",),
    "abs": ("__abs__",),
}
_TAKE_TEXT = {
    "json.loads": 0,
    "ast.literal_eval": 0,
    **dict.fromkeys((f"re.{one}" for one in ("search", "match", "fullmatch", "findall", "finditer", "split")), 1),
    "re.sub": 2,
}
"""Functions of the standard library, and which of their arguments is a text."""


def check_texts(tree: ast.Module, names: Names) -> Iterator[Said]:
    shown, imported = _shown(tree), imported_paths(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _given(node, names, imported)
            yield from _called(node, names)
        if id(node) not in shown:
            yield from _made_a_text(node, names)


def _shown(tree: ast.Module) -> set[int]:
    """Nodes inside of what shows a person something."""
    found = [one for one in ast.walk(tree) if isinstance(one, ast.Raise | ast.Assert) or _is_showing(one)]
    return {id(node) for one in found for node in ast.walk(one)}


def _is_showing(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in _SHOWING


def _made_a_text(node: ast.AST, names: Names) -> Iterator[Said]:
    """Where a value becomes a text with all of its fields."""
    taken: list[ast.expr] = []
    match node:
        case ast.FormattedValue(value=value, conversion=-1 | 115):  # with !r, or with =, it is meant
            taken = [value]
        case ast.Call(func=ast.Name(id="str") as function, args=[value]) if not names.binds(function):
            taken = [value]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="format"), args=values):
            taken = [*values]
    for one in taken:
        if (kind := _with_text(one, names)) is not None:
            yield one, f"a {kind.__name__} becomes a text with all of its fields here", f"write {ast.unparse(one)}.text"


def _given(node: ast.Call, names: Names, imported: dict[str, str]) -> Iterator[Said]:
    """To functions that take a text or a number, and no value of the sdk."""
    place = _TAKE_TEXT.get(dotted(node.func, imported))
    if place is not None and len(node.args) > place and (kind := _kind(node.args[place], names)) is not None:
        yield node.args[place], f"a {kind.__name__} is no text", _instead(kind, node.args[place])
    match node:
        case ast.Call(func=ast.Name(id=name) as function, args=[value]) if name in _CONVERSIONS:
            kind = None if names.binds(function) else _kind(value, names)
            if kind is not None and not any(hasattr(kind, one) for one in (*_CONVERSIONS[name], "__getattr__")):
                yield value, f"a {kind.__name__} is not for {name!r}", _instead(kind, value)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="join"), args=[values]):
            element = names.element(values)
            if isinstance(element, sdk.Instance):
                yield values, f"a {element.kind.__name__} is no text", "join their .text"


def _called(node: ast.Call, names: Names) -> Iterator[Said]:
    """`turn.text()`, where text is no method."""
    if isinstance(node.func, ast.Attribute) and (owner := names.value(node.func.value)) is not None:
        kind = sdk.plain_type(owner, node.func.attr)
        if kind is not None:
            title = f"{sdk.title(owner)}.{node.func.attr}"
            yield node, f"{title} is a {kind.__name__}, and no function", "take the () away"


def _kind(node: ast.expr, names: Names) -> type | None:
    value = names.value(node)
    return value.kind if isinstance(value, sdk.Instance) else None


def _with_text(node: ast.expr, names: Names) -> type | None:
    """The class of a value that has a text and is none."""
    kind = _kind(node, names)
    has_text = kind is not None and "text" in (sdk.names_of(sdk.Instance(kind)) or ())
    return kind if has_text and kind is not None and getattr(kind, "__str__", None) is object.__str__ else None


def _instead(kind: type, node: ast.expr) -> str:
    return f"write {ast.unparse(node)}.text" if "text" in (sdk.names_of(sdk.Instance(kind)) or ()) else ""
