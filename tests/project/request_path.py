"""Reads docs/request-path.md: which files it walks, and which functions of each it names."""

import ast
import re
from functools import cache
from pathlib import Path

from repository import ROOT, read

DOCUMENT = "docs/request-path.md"
FILE = re.compile(r"`([\w/]+\.py)`")
NAME = re.compile(r"`(?![\w/]+\.py`)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")


def named_by_file() -> dict[str, list[str]]:
    """The file of each section of the document (`## … `file.py``), and the names in code in it, in order."""
    sections = re.split(r"^## ", read(DOCUMENT), flags=re.MULTILINE)[1:]
    named: dict[str, list[str]] = {}
    for section in sections:
        title, _, body = section.partition("\n")
        for file in FILE.findall(title):
            named.setdefault(file, []).extend(NAME.findall(body))
    return named


def named_files() -> list[str]:
    """Every file that the document names, in titles and texts."""
    return FILE.findall(read(DOCUMENT))


@cache
def defined_names(file: str) -> set[str]:
    """Functions, classes, methods (`Class.method` and `method`), constants and fields of a source file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(read(Path("src/loopwright") / file))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name"))
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


@cache
def all_defined_names() -> set[str]:
    """The names of every source file."""
    root = ROOT / "src/loopwright"
    return set().union(*(defined_names(str(path.relative_to(root))) for path in root.rglob("*.py")))
