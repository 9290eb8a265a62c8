"""Finds grammars and regular expressions of a program that cannot be: patterns, schemas, Lark's, written as literals.

Never executes the program. It has a grammar compiled as the server would, over bytes in place of a model's tokens. Part
of `program_check`.
"""

import ast
import functools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from loopwright.core.errors import BadRequest
from loopwright.core.grammars import Grammar as GrammarCall
from loopwright.runtime import sdk_surface as sdk
from loopwright.runtime.import_paths import dotted, imported_paths
from loopwright.runtime.program_names import Names, Said
from loopwright.sdk import grammar
from loopwright.sdk.errors import LoopwrightError as Refused

_MAKERS: dict[Any, Callable[..., grammar.Grammar]] = {
    one: one for one in (grammar.regex, grammar.lark, grammar.json_schema, grammar.choice)
}
_PATTERNS = frozenset(
    f"re.{one}" for one in ("compile", "search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn")
)


def check_grammars(tree: ast.Module, names: Names) -> Iterator[Said]:
    imported = imported_paths(tree)
    uses = Counter(one.id for one in ast.walk(tree) if isinstance(one, ast.Name))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        value = names.value(node.func)
        if isinstance(value, sdk.Function) and value.function in _MAKERS:
            yield from _of_text(node, _MAKERS[value.function], names, uses)
        elif dotted(node.func, imported) in _PATTERNS:
            yield from _of_python(node.args[0])


def _of_text(node: ast.Call, make: Callable[..., grammar.Grammar], names: Names, uses: Counter[str]) -> Iterator[Said]:
    """A grammar that texts are to be held to."""
    try:
        given = names.literal(node.args[0])
        if isinstance(node.args[0], ast.Name) and not isinstance(given, str) and uses[node.args[0].id] > 2:
            return  # it may have been changed meanwhile
        made = make(given)
    except (ValueError, TypeError, Refused):  # no literal; or none that it takes, as the check of arguments says
        return
    error = _refusal(made.kind, made.source)
    if error is not None:
        yield node.args[0], error.message, error.hint


@functools.lru_cache(64)
def _refusal(kind: Any, source: str) -> BadRequest | None:  # noqa: ANN401 (a kind of the sdk's own grammars)
    from loopwright.grammar.compile import compile_grammar  # noqa: PLC0415 (llguidance, which few programs need here)

    try:
        compile_grammar(GrammarCall(kind, source), _bytes())
    except BadRequest as error:
        return error
    return None


@functools.cache
def _bytes() -> Any:  # noqa: ANN401 (imported late)
    """A vocabulary that has every byte and nothing else."""
    from loopwright.grammar.vocabulary import Vocabulary  # noqa: PLC0415 (as above)
    from loopwright.text.byte_tokenizer import byte_tokenizer  # noqa: PLC0415

    tokenizer = byte_tokenizer()
    return Vocabulary(tokenizer, len(tokenizer.token_bytes))


def _of_python(node: ast.expr) -> Iterator[Said]:
    """A pattern of Python's own."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str | bytes):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(node.value)
    except (re.error, RecursionError, OverflowError) as error:
        yield node, f"{node.value!r} is no regular expression: {error}", ""
