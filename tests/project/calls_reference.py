"""Writes docs/calls.md from the calls themselves: schemas, docstrings, comments, and the table of what holds for each.

Run by `make reference`; a test compares the file with what this would write.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from repository import ROOT

from loopwright.core import results
from loopwright.core.call_base import Call, HostCall
from loopwright.core.call_table import CALL_KINDS, CallKind, op_of
from loopwright.core.errors import ErrorInfo
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Result
from loopwright.core.samplers import TracedSampler
from loopwright.core.traits import NEEDS, TRAITS

COMMENT = re.compile(r"^ {4}(\w+): .*?  # (.+)$", re.MULTILINE)
REFERENCE = ROOT / "docs" / "calls.md"

INTRODUCTION = """# Calls

<!-- Written by `make reference` from the source; do not edit. -->

Everything a program asks is a call: one JSON object with its `op` and the fields below, and nothing else. `Context`,
`Queue` and the module `resources` make them for you; `Queue.issue(op, **fields)` sends any that takes a queue. An
unknown field, or a value out of its limits, is a BadRequest that names it. Bytes are base64 in JSON.

Issue, completion and observation are three different times. Names of queues, pages and embeds are integers that the
program chooses; they are bound when the call is issued, so a later call may use them at once. Calls of one queue keep
their order; those of different queues are independent unless they touch the same page or embed. A failed call poisons
what depends on it until its queue is cleared. With `"answer": false`, which every call takes, nobody waits for the
answer and none is sent.

**Who answers.** *runtime*: beside the program, at once or by a task. *control*: without the engine, at once or when
the call's turn in its queue comes. *inference*: in a batch on the engine.

**Traits.** A model says which it has; a call that wants another fails with ModelLacksTrait, which names both. Calls
without a trait are *core*: they work with every model.

| trait | needs |
|---|---|
"""


def reference() -> str:
    """The whole document."""
    return (
        INTRODUCTION
        + "\n".join(f"| {trait} | {', '.join(NEEDS[trait]) or 'core'} |" for trait in TRAITS)
        + "\n\n## All calls\n\n| call | trait | answered by | completes with |\n|---|---|---|---|\n"
        + "\n".join(_line(call, kind) for call, kind in CALL_KINDS.items())
        + "\n\n"
        + "\n".join(_section(trait) for trait in ("core", *TRAITS))
        + "\n## Values in calls\n\n"
        + "\n".join(_struct(one, "") for one in _values())
        + "\n## Results\n\n"
        + "\n".join(_struct(one, "") for one in _results())
    )


def _line(call: type, kind: CallKind) -> str:
    op = op_of(call)
    return f"| [`{op}`](#{op}) | {_traits(kind)} | {kind.answered_by} | {_completion(kind)} |"


def _section(trait: str) -> str:
    mine = [call for call, kind in CALL_KINDS.items() if (kind.traits or ("core",))[0] == trait]
    return f"## Trait: {trait}\n\n" + "\n".join(_call(call, CALL_KINDS[call]) for call in mine)


def _call(call: type, kind: CallKind) -> str:
    facts = f"*{_traits(kind)} · {kind.answered_by}* · completes with {_completion(kind)}"
    return _struct(call, facts, f"`{op_of(call)}`")


def _traits(kind: CallKind) -> str:
    return ", ".join(kind.traits) or "core"


def _completion(kind: CallKind) -> str:
    return _code(kind.completes_with) if isinstance(kind.completes_with, str) else _link(kind.completes_with.__name__)


def _link(name: str) -> str:
    return f"[{name}](#{_title(name).lower().replace(' ', '-')})"


def _title(name: str) -> str:
    """What stands over a struct: calls and results may have one name."""
    return f"Result {name}" if inspect.isclass(one := vars(results).get(name)) and issubclass(one, Result) else name


def _struct(struct: type, facts: str, title: str = "") -> str:
    """A heading, what the docstring says, and a table of the fields with what their comments say."""
    text = _escaped(inspect.cleandoc(struct.__doc__ or ""))
    lines = [f"### {title or _title(struct.__name__)}", ""]
    lines += [facts, ""] if facts else []
    lines += [text, ""]
    rows = [f"| `{name}` | {kind} | {default} | {note} |" for name, kind, default, note in _fields(struct)]
    if rows:
        lines += ["| field | type and limits | default | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _fields(struct: type) -> Iterator[tuple[str, str, str, str]]:
    schema = msgspec.json.schema_components([struct], ref_template="{name}")[1][struct.__name__]
    notes = _comments(struct)
    has_parent = issubclass(struct, Call | HostCall | Result)
    inherited = {"answer", "op", "result"} if has_parent else set()  # said once, in the introduction
    for name, kind in schema.get("properties", {}).items():
        if name not in inherited:
            default = "required" if name in schema.get("required", ()) else _code(_json(kind.get("default")))
            yield name, _type(kind), default, notes.get(name, "")


def _comments(struct: type) -> dict[str, str]:
    """What stands behind the fields of a struct and of those it extends."""
    found: dict[str, str] = {}
    for one in reversed(struct.__mro__):
        if one.__module__.startswith("loopwright"):
            found |= {name: _escaped(text) for name, text in COMMENT.findall(inspect.getsource(one))}
    return found


def _type(schema: dict[str, Any]) -> str:
    """A field's type and limits, in words."""
    if "$ref" in schema:
        return _link(schema["$ref"])
    if "anyOf" in schema or "enum" in schema:
        words = [*map(_type, schema.get("anyOf", ())), *(_code(_json(one)) for one in schema.get("enum", ()))]
        return " or ".join(words)
    match schema.get("type"):
        case "array":
            return _list(schema)
        case "object":
            return f"object of {_type(schema.get('additionalProperties', {}))}"
        case "integer" | "number" as kind:
            return kind + _limits(schema)
        case "string":
            kind = "base64" if schema.get("contentEncoding") == "base64" else "string"
            return kind + _sizes(schema, "Length", "characters")
        case kind:
            return kind or "any JSON"


def _list(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type(one) for one in schema['prefixItems'])}]"
    return f"list of {_type(schema['items'])}{_sizes(schema, 'Items', 'of them')}"


def _limits(schema: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {_number(schema[name])}" for name, sign in signs.items() if name in schema)
    return f" {limits}" if limits else ""


def _number(number: float) -> str:
    if abs(number) < 1 << 16:
        return f"{number:g}"
    assert number in ((1 << 31), -(1 << 31), (1 << 62)), f"say how {number} is to be written"
    return f"{'-' if number < 0 else ''}2^{int(abs(number)).bit_length() - 1}"


def _sizes(schema: dict[str, Any], what: str, unit: str) -> str:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if least is None and most is None:
        return ""
    if most is None:
        return f", at least {least} {unit}"
    return f", {least or 0} to {most} {unit}"


def _values() -> list[type]:
    """Structs that calls hold, but calls themselves."""
    components = msgspec.json.schema_components(list(CALL_KINDS), ref_template="{name}")[1]
    known = {one.__name__: one for one in _structs(TracedSampler, *CALL_KINDS)}
    return [known[name] for name in components if name in known]


def _structs(*roots: type) -> Iterator[type]:
    """Every struct of the modules of `roots` that is no call."""
    for module in dict.fromkeys(map(inspect.getmodule, roots)):
        for one in vars(module).values():
            if inspect.isclass(one) and issubclass(one, msgspec.Struct) and not issubclass(one, Call | HostCall):
                yield one


def _results() -> list[type]:
    components = msgspec.json.schema_components(get_args(results.CallResult), ref_template="{name}")[1]
    known = {**vars(results), "ErrorInfo": ErrorInfo}
    return [*(known[name] for name in components), ModelInfo]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _code(text: str) -> str:
    return f"`{text}`"


def _escaped(text: str) -> str:
    """For a table's cell or a paragraph, where a bar would end the cell and an asterisk begin emphasis."""
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
