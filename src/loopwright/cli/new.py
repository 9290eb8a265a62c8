"""`loopwright new`: a file to begin with, from a template. Never replaces one that is there."""

import argparse
import ast
import sys
from pathlib import Path

from loopwright.core.errors import BadRequest

TEMPLATES = Path(__file__).parent / "templates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = template_names()
    parser.add_argument("name", metavar="NAME", help="the file to write; .py is added if it is missing")
    parser.add_argument("--template", choices=names, default="chat", metavar="NAME", help=_help(names))


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.name if arguments.name.endswith(".py") else f"{arguments.name}.py")
    source = template_source(arguments.template)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError:
        raise BadRequest(f"{path} exists already", hint="take another name, or remove it first", field="name") from None
    sys.stdout.write(f"{path}: try  loopwright run {path}  or  loopwright dev {path}\n")
    return 0


def template_names() -> list[str]:
    return sorted(path.stem for path in TEMPLATES.glob("*.py"))


def template_source(name: str) -> str:
    return (TEMPLATES / f"{name}.py").read_text("utf-8")


def _help(names: list[str]) -> str:
    lines = [f"{name}: {_summary(name)}" for name in names]
    return "what it begins as (default: %(default)s). " + " ".join(lines)


def _summary(name: str) -> str:
    docstring = ast.get_docstring(ast.parse(template_source(name))) or ""
    return docstring.partition("\n")[0].partition(".")[0] + "."
