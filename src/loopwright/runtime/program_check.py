"""Finds what is wrong with a program before it runs: syntax, metadata, imports, calls of the sdk, permissions.

Never executes it. It says only what is certain: a name that is bound in two ways, say, could be anything. Used by
`loopwright check` and `loopwright dev`.
"""

import ast
import asyncio
import difflib
import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import TypeGuard

import msgspec

from loopwright.core.errors import PermissionDenied, ProgramRejected
from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.await_check import check_awaits
from loopwright.runtime.given_check import check_given, is_tool
from loopwright.runtime.grammar_check import check_grammars
from loopwright.runtime.impossible_check import check_files, check_possible
from loopwright.runtime.loop_check import check_loops
from loopwright.runtime.newer_syntax import nested_quotes
from loopwright.runtime.offer_check import Offer, check_offer
from loopwright.runtime.outside_literals import outside_uses
from loopwright.runtime.parameter_check import check_parameters
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.program import read_program
from loopwright.runtime.program_names import Names, Said, attributes, unknown_imports
from loopwright.runtime.text_check import check_texts
from loopwright.runtime.traced_check import check_samplers
from loopwright.runtime.use_check import check_uses

PYTHON_VERSION = (3, 11)
_LINE = re.compile(r"line (\d+)(?:, column (\d+))?")
_BLOCK = "# /// program"


CHECKS: dict[str, Callable[[ast.Module, Names], Iterator[Said]]] = {
    "await": check_awaits,
    "argument": check_given,
    "value": check_uses,
    "text": check_texts,
    "sampler": check_samplers,
    "sandbox": check_possible,
    "grammar": check_grammars,
    "parameter": check_parameters,
    "loop": check_loops,
}
"""By the code of what each finds."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong, and where: line and column count from 1."""

    line: int
    column: int
    code: str  # syntax, program, module, name, permission, server, or one of CHECKS
    message: str
    hint: str = ""


def check_program(
    source: str, filename: str, modules: Collection[str] | None, offer: Offer | None = None
) -> list[Finding]:
    """What is wrong with a program, in the order of its lines. `modules` are those that its sandbox has, or None where
    nobody knows; with an `offer`, also what that server would not give it."""
    try:
        tree = ast.parse(source, filename, feature_version=PYTHON_VERSION)
    except SyntaxError as error:
        return [
            Finding(error.lineno or 1, error.offset or 1, "syntax", error.msg, "programs are written in Python 3.11")
        ]
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, lone surrogates, absurd nesting
        return [Finding(1, 1, "syntax", f"cannot be parsed: {error}")]
    if (misplaced := _misplaced(tree, filename)) is not None:
        return [misplaced]
    names = Names(tree)
    found = [
        *_newer_syntax(source),
        *(_missing_modules(tree, modules) if modules is not None else ()),
        *_Calls(names).findings(tree),
        *(_finding(code, *said) for code, check in CHECKS.items() for said in check(tree, names)),
        *_unbound(tree, names),
    ]
    try:
        program = read_program(source, filename)
    except ProgramRejected as error:
        found.append(_rejected(error, source, filename))
    else:
        found += _missing_permissions(tree, names, program.metadata.permissions)
        if not program.metadata.limits.max_file_bytes:
            found += [_finding("sandbox", *said) for said in check_files(tree, names)]
        refused = check_offer(source, program.metadata, offer) if offer else ()
        found += [Finding(line, 1, "server", message, hint) for line, message, hint in refused]
    return sorted(set(found))


def _finding(code: str, node: ast.expr | ast.stmt | ast.arg, message: str, hint: str) -> Finding:
    return Finding(node.lineno, node.col_offset + 1, code, message, hint)


def _misplaced(tree: ast.Module, filename: str) -> Finding | None:
    """What a parser takes and no compiler: an await outside of an async function, say."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        hint = "write async def" if "outside async function" in error.msg else ""
        return Finding(error.lineno or 1, error.offset or 1, "syntax", error.msg, hint)
    except (ValueError, RecursionError, MemoryError) as error:
        return Finding(1, 1, "syntax", f"cannot be compiled: {error}")
    return None


def _rejected(error: ProgramRejected, source: str, filename: str) -> Finding:
    """Where it was said, as far as the message tells; lines of the metadata count from its first one."""
    place = _LINE.search(error.message)
    line, column = (int(place[1]), int(place[2] or 1)) if place else (1, 1)
    message = error.message.removeprefix(f"{filename}, line {line}: ").removeprefix(f"{filename}: ")
    if "metadata" in message:
        before = source.partition(_BLOCK)[0].count("\n") + 1
        line = before + line if place else before
        column += 2 if place and place[2] else 0  # the comment's own "# "
    return Finding(line, column, "program", message, error.hint)


def _newer_syntax(source: str) -> Iterator[Finding]:
    """What a newer interpreter than 3.11 reads without complaint although it was told not to."""
    for line, column in nested_quotes(source):
        yield Finding(
            line, column + 1, "syntax", "an f-string holds its own quotes: that is newer than Python 3.11",
            "programs are written in Python 3.11: use the other kind of quotes inside",
        )  # fmt: skip


def _missing_modules(tree: ast.Module, modules: Collection[str]) -> Iterator[Finding]:
    excused = {id(node) for block in ast.walk(tree) if _may_fail(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in excused:
            continue
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = ["." * node.level + (node.module or "")]
        else:
            continue
        for name in wanted:
            if name not in modules:
                yield Finding(
                    node.lineno, node.col_offset + 1, "module", f"the sandbox has no module {name!r}",
                    "it has Python's standard library and loopwright; a program is one file",
                )  # fmt: skip


def _may_fail(node: ast.AST) -> bool:
    """Whether an import inside is allowed to find nothing."""
    if isinstance(node, ast.Try):
        caught = [one for handler in node.handlers for one in ast.walk(handler.type or ast.Name("BaseException"))]
        names = {one.id for one in caught if isinstance(one, ast.Name)}
        return bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _unbound(tree: ast.Module, names: Names) -> Iterator[Finding]:
    for node in names.unknown(tree):
        near = difflib.get_close_matches(node.id, names.known(node), n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        yield Finding(node.lineno, node.col_offset + 1, "name", f"{node.id!r} is bound nowhere", hint)


def _missing_permissions(tree: ast.Module, names: Names, permissions: Permissions) -> Iterator[Finding]:
    for node, check in outside_uses(tree, names):
        try:
            check(permissions)
        except PermissionDenied as error:
            yield Finding(node.lineno, node.col_offset + 1, "permission", error.message, error.hint)


class _Calls(ast.NodeVisitor):
    """Walks a program and looks at what it does with the sdk."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._found: list[Finding] = []
        self._own_tools: set[str] = set()

    def findings(self, tree: ast.Module) -> list[Finding]:
        self._own_tools = {one.name for one in ast.walk(tree) if _is_function(one) and is_tool(one, self._names)}
        self.visit(tree)
        return self._found

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias, known in unknown_imports(node):
            self._say(alias, "name", *_unknown(node.module or "", alias.name, known))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        value = self._names.value(node.value)
        if value is None or node.attr.startswith("_") or not isinstance(node.ctx, ast.Load):
            return
        if isinstance(value, sdk.Awaitable):
            if value.is_future and hasattr(asyncio.Task, node.attr):
                return
            self._say(
                node,
                "await",
                f"{value.name}(…) is not awaited: it has no {node.attr!r}",
                f"write (await …).{node.attr}",
            )
        elif (known := attributes(value)) is not None and node.attr not in known:
            self._say(node, "name", *_unknown(sdk.title(value), node.attr, known), end_column=True)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        value = self._names.value(node.func)
        if value is not None and (signature := sdk.signature(value)) is not None:
            self._check_places(node, value, signature)
            self._check_keywords(node, value, signature)
            self._check_needed(node, value, signature)
            self._check_tool_choice(node)

    def _check_tool_choice(self, node: ast.Call) -> None:
        """Of a call whose tools are all the program's own: others may have any name."""
        given = {one.arg: one.value for one in node.keywords}
        offered, choice = given.get("tools"), given.get("tool_choice")
        if not isinstance(offered, ast.List | ast.Tuple) or not isinstance(choice, ast.Constant):
            return
        names = [one.id for one in offered.elts if isinstance(one, ast.Name)]
        if len(names) == len(offered.elts) and self._own_tools.issuperset(names):
            known = ["auto", "none", "required", *names]
            if choice.value not in known:
                self._say(choice, "argument", f"tool_choice is one of {', '.join(known)}, not {choice.value!r}")

    def _check_places(self, node: ast.Call, value: sdk.Value, signature: inspect.Signature) -> None:
        most = len(_places(signature))
        takes_any = any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())
        if len(node.args) > most and not takes_any and not any(isinstance(one, ast.Starred) for one in node.args):
            number = f"{most} positional argument{'' if most == 1 else 's'}"
            self._say(node.args[most], "argument", f"{sdk.title(value)} takes {number}, not {len(node.args)}")

    def _check_keywords(self, node: ast.Call, value: sdk.Value, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        known = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
        for rest in (one for one in parameters if one.kind is one.VAR_KEYWORD):
            options = sdk.options_of(rest)
            if options is None:
                return
            known |= options
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                message, hint = _unknown(sdk.title(value), keyword.arg, known, verb="takes")
                self._say(keyword, "argument", message, hint)

    def _check_needed(self, node: ast.Call, value: sdk.Value, signature: inspect.Signature) -> None:
        if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
            return
        places = [one.name for one in _places(signature)][: len(node.args)]
        for keyword in node.keywords:
            if keyword.arg in places:
                self._say(keyword, "argument", f"{sdk.title(value)} gets {keyword.arg!r} twice")
        given = {*places, *(one.arg for one in node.keywords)}
        for one in signature.parameters.values():
            is_needed = one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            if is_needed and one.name not in given:
                self._say(node, "argument", f"{sdk.title(value)} needs {one.name!r}")

    def _say(self, node: ast.AST, code: str, message: str, hint: str = "", *, end_column: bool = False) -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        if end_column and isinstance(node, ast.Attribute):  # where the name stands, and not the expression before it
            line, column = node.end_lineno or line, (node.end_col_offset or 0) - len(node.attr)
        self._found.append(Finding(line, column + 1, code, message, hint))


def _is_function(node: ast.AST) -> "TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]":
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _places(signature: inspect.Signature) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one for one in signature.parameters.values() if one.kind in kinds]


def _unknown(owner: str, name: str, known: Collection[str], verb: str = "has") -> tuple[str, str]:
    """The message, and the nearest name that exists."""
    near = difflib.get_close_matches(name, sorted(one for one in known if not one.startswith("_")), n=1)
    return f"{owner} {verb} no {name!r}", f"did you mean {near[0]!r}?" if near else ""
