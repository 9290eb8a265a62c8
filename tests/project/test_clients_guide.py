"""docs/clients.md: versions are those that `make clients` installs, all tested clients are there, snippets compile."""

import json
import re

from repository import ROOT, files, read

GUIDE = read("docs/clients.md")
FILES_OF = {
    "@anthropic-ai/sdk": "anthropic",
    "ai with @ai-sdk/openai-compatible": "ai_sdk",
    "anthropic": "anthropic_python",
    "langchain-openai": "langchain",
    "llm": "llm_command",
    "openai": "openai_python",
    "openai for Node": "openai",
    "pydantic-ai-slim": "pydantic_ai",
}
"""The test files of clients, where the name does not say it."""


def rows() -> list[tuple[str, str]]:
    table = GUIDE.split("|---|---|---|---|\n")[1].split("\n\n")[0]
    return [tuple(one.strip() for one in line.split("|")[1:3]) for line in table.splitlines()]  # type: ignore[misc]


def pinned() -> dict[str, str]:
    folder = "tests/clients"
    pins = read(f"{folder}/requirements-instructor.txt") + read(f"{folder}/requirements.txt")
    found = dict(re.findall(r"^([\w-]+)==(\S+)$", pins, re.MULTILINE))
    modules = json.loads(read(f"{folder}/node/package.json"))["devDependencies"]
    both = {"ai with @ai-sdk/openai-compatible": f"{modules['ai']}, {modules['@ai-sdk/openai-compatible']}"}
    return found | modules | {"openai for Node": modules["openai"], "openai": found["openai"]} | both


def test_the_versions_are_those_that_are_installed():
    assert {client: version for client, version in rows()} == {client: pinned()[client] for client, _ in rows()}
    assert f"langchain-tests {pinned()['langchain-tests']}" in GUIDE


def test_every_tested_client_is_listed_and_every_listed_one_tested():
    named = {FILES_OF.get(client, client.replace("-", "_")) for client, _ in rows()}
    tests = {path.stem.removeprefix("test_") for path in files(".py", "tests/clients") if path.stem.startswith("test_")}
    modules = {path.name.removesuffix(".test.mjs") for path in files(".mjs", "tests/clients") if ".test." in path.name}
    assert named == (tests - {"smollm2"}) | modules


def test_python_snippets_compile():
    snippets = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(snippets) >= 6
    for snippet in snippets:
        compile(snippet, str(ROOT / "docs" / "clients.md"), "exec")
