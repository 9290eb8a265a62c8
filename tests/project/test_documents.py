"""Documents name only what exists."""

import re
from pathlib import Path

import pytest
from repository import ROOT, files, read

from loopwright.cli import VERBS

ADR_INDEX = Path("docs/adr/README.md")
DOCUMENTS = files(".md")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"(?<!from )(?<![\w/.-])loopwright ([a-z]+)\b")
MAKE = re.compile(r"(?:^|[`\s])make ([a-z]+(?:-[a-z0-9]+)*)\b")


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_every_link_leads_somewhere(path: Path):
    targets = [target for target in LINK.findall(read(path)) if "://" not in target]
    assert [target for target in targets if not (ROOT / path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_every_command_in_code_is_a_verb(path: Path):
    verbs = {verb for code in code_of(read(path)) for verb in COMMAND.findall(code)}
    assert sorted(verbs - set(VERBS)) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=str)
def test_every_make_target_in_code_exists(path: Path):
    targets = {target for code in code_of(read(path)) for target in MAKE.findall(code)}
    assert sorted(targets - make_targets()) == []


def test_every_guide_that_the_source_names_exists():
    named = {name for path in files(".py") for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", read(path))}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_the_readme_names_every_verb():
    verbs = {verb for code in code_of(read("README.md")) for verb in COMMAND.findall(code)}
    assert sorted(set(VERBS) - verbs) == []


def test_decisions_are_numbered_in_order_and_listed():
    names = sorted(path.name for path in files(".md", "docs/adr") if path != ADR_INDEX)
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]
    assert LINK.findall(read(ADR_INDEX)) == names


@pytest.mark.parametrize("path", [path for path in files(".md", "docs/adr") if path != ADR_INDEX], ids=str)
def test_a_decision_is_one_page_with_context_decision_and_consequences(path: Path):
    text = read(path)
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert [name for name in ("Context", "Decision", "Consequences") if name not in headings] == []
    assert len(text.splitlines()) <= 80


def test_every_target_of_the_makefile_says_what_it_does():
    makefile = read("Makefile")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    assert phony
    described = set(re.findall(r"^([a-z0-9-]+):.*## \w", makefile, flags=re.MULTILINE))
    assert described == set(phony[1].split())


def test_ci_calls_the_targets_that_a_developer_calls():
    steps = re.findall(r"^step make (\w+)", read(".ci/run"), flags=re.MULTILINE)
    assert steps == ["setup", "check", "test"]
    assert set(steps) <= make_targets()


def test_change_notes_have_an_ending_that_the_change_log_knows():
    known = set(
        re.findall(r'^directory = "(\w+)"$', read("pyproject.toml").partition("[[tool.towncrier.type]]")[2], re.M)
    )
    notes = [path.name for path in files(".md", "changes")]
    assert known == {"added", "changed", "fixed", "removed"}
    assert [name for name in notes if name.split(".")[-2] not in known] == []


def code_of(text: str) -> list[str]:
    """Fenced blocks and inline code of a document."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return blocks + re.findall(r"`([^`\n]+)`", prose)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), flags=re.MULTILINE))
