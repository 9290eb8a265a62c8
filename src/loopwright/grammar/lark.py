"""Reads a Lark grammar far enough to refuse what llguidance would take and we could not hold to. Never parses rules.

Called with the source of a grammar of kind "lark"; gives back what llguidance is to compile. Refused are references to
tokens by number or name (control tokens never stand in a text) and options that act on the sampler. Schemas inside the
grammar are checked as schemas are.
"""

import json
import re

from loopwright.core.errors import BadRequest
from loopwright.grammar.json_schema import check_schema
from loopwright.grammar.schema_values import exact

_STRING = r'"(?:\\.|[^"\\\n])*"i?'
_REGEX = r"/(?!/)(?:\\.|[^/\\\n])+/[imslux]*"
_COMMENT = r"//[^\n]*|#[^\n]*"
_OPTIONS = r"(?<![^\n])[ \t]*[?!]?[A-Za-z_][\w-]*[ \t]*\[(?P<options>[^\]]*)\][ \t]*:"
_PART = re.compile(
    rf"(?P<quoted>{_STRING}|{_REGEX}|{_COMMENT})|{_OPTIONS}|(?P<directive>%\w+)|(?P<token><[^>\n]*>?)", re.MULTILINE
)
MAX_RULES = 1000  # llguidance recurses as deep as rules lead on to rules, on its thread's stack
_DIRECTIVES = ("%ignore", "%import", "%json", "%regex")


def read_lark(source: str, schema_options: dict[str, object]) -> str:
    """The grammar that llguidance is to enforce. `schema_options` are put into each schema, as its x-guidance."""
    parts: list[str] = []
    at = num_rules = 0
    while (found := _PART.search(source, at)) is not None:
        parts.append(source[at : found.end()])
        num_rules += source.count(":", at, found.start()) + bool(found["options"])
        at = found.end()
        if found["token"] is not None:
            raise _error(source, found.start(), f"{found['token']}: tokens cannot be named, only their text")
        if found["options"] is not None and found["options"].strip() != "lazy":
            raise _error(source, found.start("options"), f"[{found['options']}]: of rule options only lazy is known")
        if (directive := found["directive"]) is None:
            continue
        if directive not in _DIRECTIVES:
            raise _error(source, found.start(), f"{directive} is not known; {', '.join(_DIRECTIVES)} are")
        if directive == "%json":
            schema, at = _inline_schema(source, at)
            parts.append(" " + json.dumps({**schema, "x-guidance": schema_options}))
    num_rules += source.count(":", at)
    if num_rules > MAX_RULES:
        raise BadRequest(f"the grammar has {num_rules} rules; at most {MAX_RULES} are read", field="grammar.source")
    return "".join(parts) + source[at:]


def _inline_schema(source: str, at: int) -> tuple[dict[str, object], int]:
    """The schema that starts at `at`, checked, and where it ends."""
    start = at
    while source[start : start + 1].isspace():
        start += 1
    try:
        value, end = json.JSONDecoder(parse_float=exact).raw_decode(source, start)
        return check_schema(value), end
    except BadRequest as error:
        raise _error(source, start, error.message) from None
    except ValueError as error:
        raise _error(source, start, f"%json without a schema: {error}") from None


def _error(source: str, at: int, what: str) -> BadRequest:
    line = source.count("\n", 0, at) + 1
    return BadRequest(f"grammar, line {line}: {what}", field="grammar.source")
