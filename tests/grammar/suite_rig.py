"""The public JSON-Schema-Test-Suite (draft 2020-12), asked of the grammars: refused, or what of each instance.

An instance counts as accepted if one way of writing it is: the order of an object's keys is the schema's, and a whole
number is written without a fraction. An invalid one must not be accepted in any way of writing it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from grammar_rig import EOS, byte_vocabulary, ids_of

from loopwright.core.errors import BadRequest
from loopwright.core.grammars import CompiledGrammar, Grammar
from loopwright.grammar.compile import compile_grammar

SUITE = Path(__file__).parent / "json_schema_test_suite" / "draft2020-12"
MAX_SPELLINGS = 200

FORMATS = "formats are enforced: for us they are no annotation"
LEAP = "no leap second is written: which days have one is not a question of form"
SPELLING = "narrower than the RFC: no quoted local parts, address literals or dotted IPv4 inside IPv6"
CLASSES = "narrowed to what all engines agree on: docs/grammars.md, regular expressions"
CONTROLS = "no control character is written"

NARROWED: dict[tuple[str, str], str] = {
    ("format", "only an annotation by default"): FORMATS,
    ("optional/format/date-time", "leap second"): LEAP,
    ("optional/format/time", "leap second"): LEAP,
    ("optional/format/email", "quoted string"): SPELLING,
    ("optional/format/email", "IPv6-address-literal"): SPELLING,
    ("optional/format/ipv6", "mixed format"): SPELLING,
    ("optional/format/ipv6", "a long valid ipv6"): SPELLING,
    ("optional/ecmascript-regex", "NKO DIGIT ZERO"): CLASSES,
    ("optional/ecmascript-regex", "latin-1 e-acute matches"): CLASSES,
    ("optional/ecmascript-regex", "zero-width whitespace matches"): CLASSES,
    ("optional/ecmascript-regex", "Line tabulation matches"): CONTROLS,
    ("optional/ecmascript-regex", "Non-whitespace control matches"): CONTROLS,
}
"""Valid instances that no text of the grammar is, by file and words of their description, with the reason."""


@dataclass(frozen=True)
class Case:
    """One schema of the suite and its instances."""

    file: str
    description: str
    schema: Any
    instances: tuple[dict[str, Any], ...]

    def compile(self) -> CompiledGrammar:
        """Raises BadRequest."""
        return compile_grammar(Grammar("json_schema", json.dumps(self.schema)), byte_vocabulary())


@dataclass
class Verdict:
    """What became of one case."""

    refusal: str | None = None  # what was said, if the schema was refused
    place: str | None = None  # the field with the pointer
    num_agreed: int = 0
    narrowed: Counter[str] = field(default_factory=Counter)  # valid instances that are never written, by reason
    wrong: list[str] = field(default_factory=list)


def cases() -> list[Case]:
    found = []
    for path in sorted(SUITE.rglob("*.json")):
        name = str(path.relative_to(SUITE).with_suffix(""))
        for group in json.loads(path.read_text(encoding="utf-8")):
            found.append(Case(name, group["description"], group["schema"], tuple(group["tests"])))
    return found


def judge(case: Case) -> Verdict:
    """What the grammar of the case makes of its instances."""
    try:
        grammar = case.compile()
    except BadRequest as error:
        return Verdict(refusal=error.message, place=error.field)
    verdict = Verdict()
    for instance in case.instances:
        is_accepted = any(accepts(grammar, text) for text in islice(spellings(instance["data"]), MAX_SPELLINGS))
        if is_accepted == instance["valid"]:
            verdict.num_agreed += 1
        elif instance["valid"] and (reason := _reason(case.file, instance["description"])):
            verdict.narrowed[reason] += 1
        else:
            verdict.wrong.append(f"{instance['description']}: {json.dumps(instance['data'])} is {instance['valid']}")
    return verdict


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the text, byte by byte, is a whole one of the grammar's."""
    state, told = grammar.start(), text.encode()
    if state.take(list(told)) < len(told):
        return False
    return state.is_over or EOS in ids_of(state.allowed_bits([EOS]))


def spellings(value: Any) -> Iterator[str]:
    """Ways of writing a value as JSON."""
    for one in _orders(value):
        yield json.dumps(one, ensure_ascii=False)
        yield json.dumps(one)
    yield json.dumps(value, indent=1)
    yield json.dumps(value, separators=(",", ":"))


def _orders(value: Any) -> Iterator[Any]:
    """The same value with its keys in other orders, at every depth, and whole numbers as integers."""
    match value:
        case dict():
            for names in permutations(value):
                for inner in product(*(list(islice(_orders(value[name]), 24)) for name in names)):
                    yield dict(zip(names, inner, strict=True))
        case list():
            yield from map(list, product(*(list(islice(_orders(one), 24)) for one in value)))
        case float() if value.is_integer():
            yield from (int(value), value)
        case _:
            yield value


def _reason(file: str, description: str) -> str | None:
    return next((why for (at, words), why in NARROWED.items() if at == file and words in description), None)
