"""Says which thing of a module an expression of a program names, as far as its imports tell. Never imports one.

Read by the checks of what is not the sdk's: asyncio's loops, files, the standard library's functions.
"""

import ast


def imported_paths(tree: ast.Module) -> dict[str, str]:
    """What names of imports stand for, where nothing else binds them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                root = one.name.partition(".")[0]
                found[one.asname or root] = one.name if one.asname else root
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    bound = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return {name: path for name, path in found.items() if name not in bound}


def dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """The path of a thing of a module, or ""."""
    match node:
        case ast.Name(id=name):
            return imported.get(name, "")
        case ast.Attribute(value=value, attr=name) if owner := dotted(value, imported):
            return f"{owner}.{name}"
    return ""
