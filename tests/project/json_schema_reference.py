"""Writes docs/json-schema.md: what of the public JSON-Schema-Test-Suite is enforced and what is refused, from a run.

Run by `make reference`; a test compares the file with what this would write.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable

from repository import ROOT

sys.path.insert(0, str(ROOT / "tests" / "grammar"))

from suite_rig import Case, Verdict, cases, judge

from loopwright.grammar import json_schema, schema_values

JSON_SCHEMA_REFERENCE = ROOT / "docs" / "json-schema.md"

BEFORE = """# JSON Schema, held against the public test suite

<!-- Written by `make reference` from a run of the suite; do not edit. -->

A schema is enforced or it is refused with a JSON pointer ([grammars.md](grammars.md)). This is what becomes of each
schema of the public [JSON-Schema-Test-Suite](https://github.com/json-schema-org/JSON-Schema-Test-Suite) for draft
2020-12, optional parts included: of those that are enforced, every valid instance is a text of the grammar and no
invalid one is, in whatever order its keys stand. `tests/grammar/test_json_schema_suite.py` holds that in each run of
the tests, and also validates what the grammars write at random.
"""
KEYWORDS = """
## Keywords

Enforced: {enforced}. Passed over, since they say nothing about a text: {annotations}. Formats: {formats}. Every other
keyword, format and dialect is refused by name.
"""


def json_schema_reference() -> str:
    """What stands in docs/json-schema.md."""
    found = [(case, judge(case)) for case in cases()]
    return BEFORE + _keywords() + _totals(found) + _table(found) + _narrowed(found)


def _keywords() -> str:
    told = {
        "enforced": json_schema.ENFORCED,
        "annotations": json_schema.ANNOTATIONS,
        "formats": schema_values.FORMATS,
    }
    return KEYWORDS.format(**{name: _listed(words) for name, words in told.items()})


def _totals(found: list[tuple[Case, Verdict]]) -> str:
    enforced = [verdict for _, verdict in found if verdict.refusal is None]
    num_agreed = sum(verdict.num_agreed for verdict in enforced)
    num_narrowed = sum(verdict.narrowed.total() for verdict in enforced)
    return (
        f"\n## The suite\n\n{len(found)} schemas: {len(enforced)} enforced, {len(found) - len(enforced)} refused.\n"
        f"Of the instances of the enforced ones {num_agreed} are judged as the suite does, {num_narrowed} valid ones "
        f"are never\nwritten (below), and {sum(len(verdict.wrong) for verdict in enforced)} invalid ones could be.\n"
    )


def _table(found: list[tuple[Case, Verdict]]) -> str:
    rows = ["\n| file of the suite | enforced | refused | why |", "|---|--:|--:|---|"]
    for file in dict.fromkeys(case.file for case, _ in found):
        verdicts = [verdict for case, verdict in found if case.file == file]
        refusals = [verdict.refusal for verdict in verdicts if verdict.refusal is not None]
        reasons = "; ".join(_reason(one) for one in dict.fromkeys(map(_shortened, refusals)))
        rows.append(f"| {file} | {len(verdicts) - len(refusals)} | {len(refusals)} | {reasons} |")
    return "\n".join(rows) + "\n"


def _narrowed(found: list[tuple[Case, Verdict]]) -> str:
    counts: Counter[str] = sum((verdict.narrowed for _, verdict in found), Counter())
    rows = [f"| {reason} | {num} |" for reason, num in sorted(counts.items())]
    head = "\n## Valid, and never written\n\nA grammar may be narrower than its schema, never wider.\n\n"
    return head + "\n".join(["| reason | instances |", "|---|--:|", *rows]) + "\n"


def _shortened(refusal: str) -> str:
    """A refusal without its place and its values, so that those of one kind are one."""
    said = refusal.partition(": ")[2]
    said = re.sub(r" is not a reference into this document", "references into other documents", said)
    said = re.sub(r"^.*references into", "references into", said)
    said = re.sub(r"^.*is not a schema in this document", "references to what is no schema", said)
    said = re.sub(r"the keyword '(.*)' is not supported", r"`\1`", said)
    said = re.sub(r"the format \"(.*?)\" is not enforced.*", r"`\1`", said)
    said = re.sub(r"^.*is not a known dialect", "another dialect", said)
    said = re.sub(r"^.*control characters.*", "control characters", said)
    said = re.sub(r"^regular expression '(.*)', character \d+: (.*)", r"the pattern `\1`", said)
    said = re.sub(r"^patternProperty regexes .*", "patterns of properties that overlap", said)
    said = re.sub(r"^\S+ is beyond ±2\^53.*|^Failed to generate regex for float range.*", "numbers beyond ±2^53", said)
    said = re.sub(r"^multiples of .*", "multiples that a double cannot tell", said)
    return re.sub(r"^Unsatisfiable schema.*", "nothing fulfils it", said)


def _reason(said: str) -> str:
    return said.replace("|", "\\|")


def _listed(words: Iterable[str]) -> str:
    return " ".join(f"`{word}`" for word in sorted(words))


if __name__ == "__main__":
    JSON_SCHEMA_REFERENCE.write_text(json_schema_reference(), encoding="utf-8")
