"""A program's parameters as command-line flags. Never runs a program. Used by `run`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from loopwright.core.errors import BadRequest
from loopwright.core.nearest import did_you_mean
from loopwright.core.runs import Parameter
from loopwright.runtime.program import Program


def parse_program_flags(program: Program, command: str, words: Sequence[str]) -> dict[str, Any]:
    """The arguments of `main`. Wrong or missing flags print a usage line and exit with status 2."""
    parser = program_parser(program, command)
    read, unknown = parser.parse_known_args(words)
    if unknown:
        flags = [flag for parameter in program.parameters for flag in _flags(parameter.name)[:1]]
        near = did_you_mean(unknown[0].partition("=")[0], flags)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{f'; {near}' if near else ''}")
    given = vars(read)
    try:
        program.check_arguments(given)
    except BadRequest as error:
        parser.error(error.message.partition("; usage:")[0])
    return given


def program_parser(program: Program, command: str) -> argparse.ArgumentParser:
    """A parser of the program's flags; what is not given is absent from what it returns."""
    parser = argparse.ArgumentParser(
        prog=command,
        description=program.description,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,  # `help` may be a parameter
    )
    names = {parameter.name for parameter in program.parameters}
    for parameter in program.parameters:
        if parameter.type == "bool":
            _add_switch(parser, parameter, has_negation=f"no_{parameter.name}" not in names)
        else:
            _add_flag(parser, parameter)
    return parser


def _add_flag(parser: argparse.ArgumentParser, parameter: Parameter) -> None:
    parser.add_argument(
        *_flags(parameter.name),
        dest=parameter.name,
        required=parameter.is_required,
        type=_reader(parameter.type),
        metavar="JSON" if _takes_json(parameter.type) else "VALUE",
        help=_help(parameter),
    )


def _add_switch(parser: argparse.ArgumentParser, parameter: Parameter, *, has_negation: bool) -> None:
    """--name and --no-name. argparse's own action takes the --no-cache of a parameter `no_cache` for a negation."""
    group = parser.add_mutually_exclusive_group(required=parameter.is_required)
    options: dict[str, Any] = {"dest": parameter.name, "action": "store_const"}
    group.add_argument(*_flags(parameter.name), const=True, help=_help(parameter), **options)
    if has_negation:
        group.add_argument(*_flags(f"no_{parameter.name}"), const=False, help=f"not --{parameter.name}", **options)


def _flags(name: str) -> list[str]:
    return list(dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}")))


def _help(parameter: Parameter) -> str:
    text = f"{parameter.type}{_written_as(parameter.type)}"
    if not parameter.is_required:
        text += f", default {parameter.default!r}"
    return text.replace("%", "%%")


def _takes_json(type_name: str) -> bool:
    """Whether a value is written as JSON, whatever it is."""
    return all(kind in _AS_JSON for kind in _kinds(type_name))


def _written_as(type_name: str) -> str:
    """How a list or a dict is written."""
    shown = [f"'{_AS_JSON[kind]}'" for kind in _kinds(type_name) if kind in _AS_JSON]
    return f" (as JSON: {' or '.join(shown)})" if shown else ""


def _kinds(type_name: str) -> list[str]:
    """The outermost types, without None."""
    kinds = [part.strip().partition("[")[0] for part in type_name.split("|")]
    return [kind for kind in kinds if kind != "None"]


def _reader(type_name: str) -> Callable[[str], Any]:
    """Reads a word as the first of the types that it fits."""
    readers = [_READERS.get(kind, _read_json_or_text) for kind in _kinds(type_name)] or [_read_json]

    def read(word: str) -> Any:  # noqa: ANN401 (JSON)
        for reader in readers:
            try:
                return reader(word)
            except (ValueError, RecursionError):
                continue
        raise argparse.ArgumentTypeError(f"{word!r} is no {type_name}{_written_as(type_name)}")

    return read


def _read_json(word: str) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(word)


def _read_json_or_text(word: str) -> Any:  # noqa: ANN401 (JSON)
    """For a parameter without a type, or with one that is not known here."""
    try:
        return json.loads(word)
    except ValueError:
        return word


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _read_json,
    "list": _read_json,
    "dict": _read_json,
}


_AS_JSON = {"list": '["a", "b"]', "dict": '{"a": 1}'}


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
