"""What holds for every file, beyond what ruff, mypy and import-linter check."""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from repository import files, project_files, read

# Spelled in pieces, so that this file does not hold them itself.
PLACES_OUTSIDE = [re.compile("/wo" + "rk/"), re.compile(r"\.\./sha" + "red"), re.compile(r"(?<![\w/])sha" + r"red/\w")]


@pytest.mark.parametrize("path", [path for path in files(".py") if read(path).strip()], ids=str)
def test_a_module_opens_with_a_docstring(path: Path):
    assert ast.get_docstring(ast.parse(read(path))), f"{path} has no docstring"


def test_no_file_points_outside_the_project():
    texts = {path: read(path) for path in project_files() if path.suffix in (".py", ".md", ".toml", ".txt", ".wit", "")}
    found = [
        (str(path), place.pattern) for path, text in texts.items() for place in PLACES_OUTSIDE if place.search(text)
    ]
    assert found == []


def test_every_test_file_has_a_name_of_its_own():
    """pytest imports test files by their bare name, so two of one name shadow each other."""
    names = Counter(path.name for path in files(".py", "tests") if path.name not in ("conftest.py", "__init__.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", files(".py", "src/loopwright/sdk"), ids=str)
def test_the_sdk_imports_itself_and_the_standard_library_alone(path: Path):
    """It is baked into the sandbox, where nothing else exists."""
    foreign = [
        name
        for name in imported_names(ast.parse(read(path)))
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("loopwright.sdk")
    ]
    assert foreign == []


def test_wasmtimes_private_names_are_touched_in_one_module():
    private = re.compile(r"wasmtime\._|from wasmtime import .*\b_\w")
    users = [path.name for path in files(".py", "src") if private.search(read(path))]
    assert users == ["fibers.py"]


def test_no_module_is_a_junk_drawer():
    banned = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [str(path) for path in files(".py", "src") if path.stem in banned] == []


def imported_names(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names
