"""A program's parameters as command-line flags. Never runs a program. Used by `run`."""

import argparse
import json
import sys
from typing import Any

from loopwright.core.runs import Parameter
from loopwright.runtime.program import Program


def parse_program_flags(program: Program, command: str, words: list[str]) -> dict[str, Any]:
    """The arguments of `main`. Wrong or missing flags print a usage line and exit with status 2."""
    parser = argparse.ArgumentParser(prog=command, description=program.description, allow_abbrev=False)
    for parameter in program.parameters:
        _add_flag(parser, parameter)
    given = vars(parser.parse_args(words))
    return {name: value for name, value in given.items() if value is not _ABSENT}


_ABSENT = object()


def _add_flag(parser: argparse.ArgumentParser, parameter: Parameter) -> None:
    flags = [f"--{parameter.name.replace('_', '-')}"]
    if "_" in parameter.name:
        flags.append(f"--{parameter.name}")
    kinds = [part.strip().partition("[")[0] for part in parameter.type.split("|")]
    text = parameter.type if parameter.is_required else f"{parameter.type}, default {parameter.default!r}"
    options: dict[str, Any] = {
        "dest": parameter.name,
        "required": parameter.is_required,
        "default": _ABSENT,
        "help": text.replace("%", "%%"),
    }
    if kinds == ["bool"]:
        parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **options)
        return
    readers = {"str": str, "int": int, "float": float}
    reader = next((readers[kind] for kind in kinds if kind in readers), _read_json)
    parser.add_argument(*flags, type=reader, metavar=parameter.type.upper().replace(" ", ""), **options)


def _read_json(text: str) -> Any:  # noqa: ANN401 (JSON)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None


def read_source(path: str) -> str:
    """The file's text; exits with status 2 and one line when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        sys.stderr.write(f"loopwright: cannot read {path}: {error.strerror}\n")
    except UnicodeDecodeError:
        sys.stderr.write(f"loopwright: {path} is not UTF-8 text\n")
    raise SystemExit(2)
