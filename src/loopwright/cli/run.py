"""`loopwright run`: one program, here, beside a model. Text goes to stdout as it is made, logs to stderr."""

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from loopwright.cli.program_flags import parse_program_flags, read_source
from loopwright.cli.progress import progress_bars
from loopwright.compose.config import Config, RuntimeConfig
from loopwright.compose.system import open_system
from loopwright.core.errors import ErrorInfo
from loopwright.core.events import Emit, Finished, Log, Started, Text, Tokens
from loopwright.core.runs import Runs, RunSpec
from loopwright.runtime.program import read_program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.py", help="the program; the typed parameters of its main are flags too")
    parser.add_argument("--native", action="store_true", help="without the sandbox, to debug it: breakpoints work")
    parser.add_argument("--model", default="default", help="a model's name, GGUF file, folder or Hub id")
    parser.add_argument("--seed", type=int, help="makes the run's randomness repeat")


def run(arguments: argparse.Namespace) -> int:
    source = read_source(arguments.file)
    program = read_program(source, Path(arguments.file).name)
    words = parse_program_flags(program, f"loopwright run {arguments.file}", arguments.program_flags)
    spec = RunSpec(
        source=source,
        filename=Path(arguments.file).name,
        arguments=words,
        sandbox="native" if arguments.native else "wasm",
        seed=arguments.seed,
    )
    return run_here(spec, arguments.model)


def run_here(spec: RunSpec, model: str) -> int:
    """Runs a program in a system of its own and prints its events. Returns the exit status."""
    is_native = spec.sandbox == "native"
    config = Config(model=model, runtime=RuntimeConfig(allows_native=is_native, needs_wasm=not is_native))
    return asyncio.run(_run(spec, config))


async def _run(spec: RunSpec, config: Config) -> int:
    async with AsyncExitStack() as stack:
        with progress_bars() as report:
            system = await stack.enter_async_context(open_system(config, report))
        return await _print_events(system.runs, spec)


async def _print_events(runs: Runs, spec: RunSpec) -> int:
    run_id = await runs.start(spec)
    has_text = False
    async for event in runs.events(run_id):
        match event:
            case Text():
                has_text = True
                sys.stdout.write(event.text)
                sys.stdout.flush()
            case Log():
                sys.stderr.write(f"[{event.stream}] {event.line}\n")
            case Emit():
                sys.stderr.write(f"[emit] {json.dumps(event.value, ensure_ascii=False)}\n")
            case Finished():
                return _print_end(event, has_text)
            case Started() | Tokens():
                pass
    return 1


def _print_end(event: Finished, has_text: bool) -> int:
    if has_text:
        sys.stdout.write("\n")
    if event.error is not None:
        sys.stderr.write(_describe(event.error))
        return 1
    if not has_text and event.result is not None:
        sys.stdout.write(_as_text(event.result) + "\n")
    return 0


def _describe(error: ErrorInfo) -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return f"{error.traceback}loopwright: {error.code}: {error.message}{hint}\n"


def _as_text(result: Any) -> str:  # noqa: ANN401 (JSON)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
