"""Which modules a program can import in the sandbox, as the runner itself says. Never guesses from this interpreter.

Asked by `loopwright check`; the answer is kept beside the runner.
"""

import json
from collections.abc import Callable
from pathlib import Path

from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes.runner_build import RunnerFiles
from loopwright.runtime.sandboxes.wasm import open_wasm_sandbox

_LISTING = """
import sys

async def main():
    roots = {*sys.stdlib_module_names, "loopwright"}
    return sorted(name for name in sys.modules if name.partition(".")[0] in roots)
"""


async def runner_modules(files: RunnerFiles) -> frozenset[str]:
    """Dotted names of all modules that exist inside: what is not imported when the runner is built never is."""
    kept = modules_file(files.component)
    if not kept.exists():
        _write(kept, await _listed_inside(files))
    return frozenset(json.loads(kept.read_text("utf-8")))


def modules_file(component: Path) -> Path:
    """Where the list of this version of the runner is kept."""
    return component.with_suffix(".modules.json")


async def _listed_inside(files: RunnerFiles) -> str:
    sandbox = open_wasm_sandbox(files)
    try:
        return await sandbox.run(_LISTING, "modules.py", "{}", _Nobody(), Limits())
    finally:
        await sandbox.close()


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(path)


class _Nobody:
    """The host of the program that lists modules, which asks nothing."""

    def submit(self, op: str) -> int:
        raise AssertionError(op)

    def log(self, stream: str, line: str) -> None: ...

    def take_events(self) -> str:
        return ""

    def set_waker(self, wake: Callable[[], None] | None) -> None: ...
