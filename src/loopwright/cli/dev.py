"""`loopwright dev`: runs a program again at every save, beside a model that stays loaded, and shows what it does.

Never changes the file. A save that cannot run says why, and the next one is waited for.
"""

import argparse
import asyncio
import contextlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from loopwright.cli.check import sandbox_modules
from loopwright.cli.dev_view import DevView
from loopwright.cli.interrupts import run_work
from loopwright.cli.program_flags import parse_program_flags
from loopwright.cli.progress import progress_bars
from loopwright.cli.run import add_program_arguments, config_here
from loopwright.compose.config import Config
from loopwright.compose.system import Prepared, open_here, prepare
from loopwright.core.runs import Runs, RunSpec
from loopwright.runtime.program import read_program
from loopwright.runtime.program_check import check_program
from loopwright.runtime.tracing import Trace

POLL_S = 0.1
"""How often the file is looked at: a save is seen when it has lain still for as long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("--trace", metavar="FILE", help="write the trace there too, as lines of JSON")


def run(arguments: argparse.Namespace) -> int:
    native = arguments.native
    config = config_here(arguments.model, is_native=native, config_file=arguments.config)
    with progress_bars() as report:
        prepared = prepare(config, report)
        modules = frozenset[str]() if native else sandbox_modules(report)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(open(arguments.trace, "wb")) if arguments.trace else None
        run_work(_develop(arguments, config, prepared, modules, lines))
    raise AssertionError("it ends by an interrupt alone")


class SavedFile:
    """A file that is watched by its time, size and identity: editors write in place, or put a new file there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> str:
        """The text as it is now. Raises OSError, UnicodeDecodeError."""
        self._seen = self._state()
        return self._path.read_text("utf-8")

    async def changed(self) -> None:
        """Waits until it is there, is not what was read, and lies still."""
        before = self._seen
        while (state := self._state()) is None or state == self._seen or state != before:
            before = state
            await asyncio.sleep(POLL_S)

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


async def _develop(
    arguments: argparse.Namespace, config: Config, prepared: Prepared, modules: frozenset[str], lines: BinaryIO | None
) -> None:
    view = DevView(arguments.file)

    def record(trace: Trace) -> None:
        view.trace(trace)
        if lines is not None:
            lines.write(msgspec.json.encode(trace) + b"\n")
            lines.flush()

    saved = SavedFile(Path(arguments.file))
    async with open_here(config, prepared, record) as system:
        while True:
            spec = _spec(arguments, saved, view, modules)
            if spec is None:
                view.waits()
                await saved.changed()
            else:
                await _run_until_saved(system.runs, spec, saved, view)


def _spec(arguments: argparse.Namespace, saved: SavedFile, view: DevView, modules: frozenset[str]) -> RunSpec | None:
    """What to run, or None if what was saved cannot run: then the view has said why."""
    path = Path(arguments.file)
    view.begins()
    try:
        source = saved.read()
    except (OSError, UnicodeDecodeError) as error:
        view.cannot_read(str(error))
        return None
    findings = check_program(source, path.name, modules)
    if arguments.native:
        # What it may import, and what else there is beside modules, is this interpreter's affair.
        findings = [one for one in findings if one.code not in ("module", "sandbox")]
    view.findings(findings)
    if any(one.code in ("syntax", "program") for one in findings):
        return None
    program = read_program(source, path.name)
    try:
        given = parse_program_flags(program, f"loopwright dev {arguments.file}", arguments.program_flags)
    except SystemExit:  # the flags do not fit this version of main; the usage is on stderr
        return None
    return RunSpec(
        source=source,
        filename=path.name,
        arguments=given,
        sandbox="native" if arguments.native else "wasm",
        seed=arguments.seed,
    )


async def _run_until_saved(runs: Runs, spec: RunSpec, saved: SavedFile, view: DevView) -> None:
    """Runs it to its end, or until the file changes; returns when it has changed and the run has ended."""
    run_id = await runs.start(spec)

    async def show() -> None:
        async for event in runs.events(run_id):
            view.event(event)
        view.waits()

    showing = asyncio.create_task(show())
    try:
        await saved.changed()
    finally:
        await runs.cancel(run_id)  # one that has ended stays as it is
        await showing
