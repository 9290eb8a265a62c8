"""Reads a program: its metadata, its signature, its limits and permissions. Never executes it. Used by the launcher.

A program is one Python 3.11 file with `async def main(...)`; an optional block in the form of PEP 723 holds metadata:
    # /// program
    # permissions = { http = ["api.example.org"] }
    # limits = { memory_mb = 64, seconds = 120 }
    # ///
"""

import ast
import difflib
import functools
import hashlib
import inspect
import re
import textwrap
import tomllib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec

from loopwright.core.errors import BadRequest, ProgramRejected
from loopwright.core.nearest import did_you_mean
from loopwright.core.runs import Parameter
from loopwright.runtime.limits import Limits
from loopwright.runtime.permissions import Permissions

MAX_SOURCE_BYTES = 1 << 20
MAX_READ_PROGRAMS = 32  # that are remembered, with their sources
MAX_DESCRIPTION_CHARS = 500
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_BLOCK = re.compile(r"(?m)^# /// program\s*$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata block."""

    permissions: Permissions = Permissions()
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was read and can be run."""

    source: str
    filename: str
    description: str
    parameters: tuple[Parameter, ...]
    metadata: Metadata
    entry: str = "main"  # the function that is run

    @property
    def code(self) -> str:
        """The source as a sandbox runs it, whose `main` is the entry."""
        return self.source if self.entry == "main" else f"{self.source}\n\nmain = {self.entry}\n"

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    def check_arguments(self, arguments: dict[str, Any]) -> None:
        """Raises BadRequest naming the argument that is missing, unknown or of the wrong type."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in arguments.keys() - known.keys():
            message = f"{self.filename}: {self.entry} has no parameter {name!r}; {self.usage()}"
            raise BadRequest(message, hint=did_you_mean(name, known), field=name)
        for name, parameter in known.items():
            if name in arguments:
                _check_type(self, parameter, arguments[name])
            elif parameter.is_required:
                raise BadRequest(f"{self.filename}: the argument {name!r} is missing; {self.usage()}", field=name)

    def usage(self) -> str:
        """One line that says what `main` takes."""
        words = [
            f"{one.name}: {one.type}" if one.is_required else f"{one.name}: {one.type} = {one.default!r}"
            for one in self.parameters
        ]
        return f"usage: {self.entry}({', '.join(words)})"


@functools.lru_cache(MAX_READ_PROGRAMS)
def read_program(source: str, filename: str, entry: str = "main") -> Program:
    """Raises ProgramRejected, with file and line, for a file that is not a program. The last ones are remembered: 200
    lines take milliseconds."""
    check_size(source, filename)
    tree = _parse(source, filename)
    main = _find_main(tree, filename, entry)
    try:
        parameters = _parameters(main, filename)
    except RecursionError:  # what the parser just bears is too deep for the rest
        raise ProgramRejected(f"{filename}, line {main.lineno}: the parameters of main are nested too deeply") from None
    return Program(
        source=source,
        filename=filename,
        description=_first_paragraph(ast.get_docstring(tree) or ast.get_docstring(main) or ""),
        parameters=parameters,
        metadata=_metadata(source, filename),
        entry=entry,
    )


def check_size(source: str, filename: str) -> None:
    """Raises ProgramRejected for what is too large to be looked at."""
    size = len(source.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise ProgramRejected(f"{filename} has {size} bytes; a program has at most {MAX_SOURCE_BYTES}")


@functools.cache
def read_builtin(module: ModuleType) -> Program:
    """A built-in program, read from its own source."""
    return read_program(inspect.getsource(module), f"{module.__name__.rpartition('.')[2]}.py")


def _parse(source: str, filename: str) -> ast.Module:
    try:
        return ast.parse(source, filename, feature_version=(3, 11))
    except SyntaxError as error:
        place = filename if error.lineno is None else f"{filename}, line {error.lineno}"  # null bytes have no line
        raise ProgramRejected(f"{place}: {error.msg}", hint="programs are written in Python 3.11") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, lone surrogates, absurd nesting
        raise ProgramRejected(f"{filename} cannot be parsed: {error}") from None


def _find_main(tree: ast.Module, filename: str, entry: str) -> ast.AsyncFunctionDef:
    found = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry
    ]
    hint = f"`async def {entry}(...)`"
    if not found:
        raise ProgramRejected(f"{filename} has no {entry}", hint=f"define {hint} at the top level")
    main = found[-1]
    if not isinstance(main, ast.AsyncFunctionDef):
        raise ProgramRejected(f"{filename}, line {main.lineno}: {entry} is not async", hint=f"write {hint}")
    return main


def _first_paragraph(text: str) -> str:
    """In one line, cut at a word. Without half a surrogate pair, which an escape can write and no message between
    processes holds."""
    line = " ".join(_PARAGRAPH_END.split(text, maxsplit=1)[0].split())
    return textwrap.shorten(line, MAX_DESCRIPTION_CHARS, placeholder=" …").encode(errors="replace").decode()


def _parameters(main: ast.AsyncFunctionDef, filename: str) -> tuple[Parameter, ...]:
    arguments = main.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise ProgramRejected(
            f"{filename}, line {main.lineno}: main takes *args, ** or positional-only parameters",
            hint="every parameter of main is an input with a name",
        )
    defaults: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    pairs = list(zip(arguments.args, [*defaults, *arguments.defaults], strict=True))
    pairs += list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return tuple(_parameter(argument, default, filename) for argument, default in pairs)


def _parameter(argument: ast.arg, default: ast.expr | None, filename: str) -> Parameter:
    kind = ast.unparse(argument.annotation) if argument.annotation is not None else "any"
    if default is None:
        return Parameter(argument.arg, kind, is_required=True)
    try:
        value = msgspec.json.decode(msgspec.json.encode(ast.literal_eval(default)))
    except (ValueError, TypeError):
        raise ProgramRejected(
            f"{filename}, line {argument.lineno}: the default of {argument.arg!r} is not a JSON value",
            hint="use a number, a string, True, False, None, a list or a dict; compute anything else inside main",
        ) from None
    return Parameter(argument.arg, kind, is_required=False, default=value)


def _metadata(source: str, filename: str) -> Metadata:
    blocks = list(_BLOCK.finditer(source))
    if not blocks:
        return Metadata()
    if len(blocks) > 1:
        raise ProgramRejected(f"{filename} has {len(blocks)} metadata blocks; one is allowed")
    lines = blocks[0].group("content").splitlines()
    text = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        return msgspec.convert(tomllib.loads(text), Metadata)
    except msgspec.ValidationError as error:
        raise ProgramRejected(f"{filename}: metadata: {error}", hint=_nearest_field(str(error))) from None
    except (ValueError, RecursionError) as error:  # tomllib's own, a number of 5000 digits, absurd nesting
        is_twice = "overwrite" in str(error)  # what following the hints of two refusals to the letter makes
        hint = (
            "write `limits` and `permissions` once each, with all that belongs to it between its braces"
            if is_twice
            else ""
        )
        raise ProgramRejected(f"{filename}: the metadata block is not TOML: {error}", hint=hint) from None


def _nearest_field(error: str) -> str:
    unknown = re.search(r"unknown field `(.*?)`", error)
    known = [name for kind in (Metadata, Limits, Permissions) for name in kind.__struct_fields__]
    near = difflib.get_close_matches(unknown[1], known, 1) if unknown else []
    return f"did you mean {near[0]!r}?" if near else ""


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


def _check_type(program: Program, parameter: Parameter, value: object) -> None:
    """Checks the outermost type only; what a program needs beyond that it checks itself."""
    wanted = [_TYPES.get(part.strip().partition("[")[0]) for part in parameter.type.split("|")]
    if any(types is None for types in wanted):
        return
    is_bool_for_number = isinstance(value, bool) and (bool,) not in wanted
    if is_bool_for_number or not any(isinstance(value, types) for types in wanted if types):
        raise BadRequest(
            f"{program.filename}: the argument {parameter.name!r} is {type(value).__name__}; "
            f"{program.entry} wants {parameter.type}; {program.usage()}",
            field=parameter.name,
        )
