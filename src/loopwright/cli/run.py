"""`loopwright run`: one program, here, beside a model. Text goes to stdout as it is made, all else to stderr.

What main returned goes to stdout if there was no text, and else to stderr, so that a pipe gets one thing.
"""

import argparse
import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from loopwright.cli.interrupts import run_work
from loopwright.cli.program_flags import parse_program_flags, program_parser, read_source
from loopwright.cli.progress import progress_bars
from loopwright.cli.setting_flags import CONFIG_HELP, model_flags
from loopwright.cli.typed_lines import TypedLines
from loopwright.compose.config import Config
from loopwright.compose.config_sources import load_config
from loopwright.compose.system import Prepared, open_system, prepare
from loopwright.core.errors import BadRequest, ErrorInfo
from loopwright.core.events import Emit, Finished, Log, Receive, Started, Text, Tokens, ToolCall
from loopwright.core.ids import RunId
from loopwright.core.runs import ClientInput, Runs, RunSpec, open_events
from loopwright.runtime.program import Program, read_program

MAX_SEED = 2**62 - 1
FILE_HELP = "the program; the typed parameters of its main are flags too. What follows -- is the program's alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a verb that runs a file; flags that it does not know are the program's."""
    parser.add_argument("file", metavar="FILE.py", help=FILE_HELP)
    parser.add_argument("-h", "--help", action=_Help, nargs=0, help="show this and, after FILE.py, the program's flags")
    parser.add_argument("--native", action="store_true", help="without the sandbox, to debug it: breakpoints work")
    parser.add_argument("--config", metavar="FILE.toml", help=CONFIG_HELP)
    parser.add_argument("--model", help="a model's name, GGUF file, folder or Hub id")
    parser.add_argument("--seed", type=_seed, help="makes the run's randomness repeat")


def run(arguments: argparse.Namespace) -> int:
    source, program = _read(arguments.file)
    spec = RunSpec(
        source=source,
        filename=program.filename,
        arguments=parse_program_flags(program, _command(arguments.file), arguments.program_flags),
        sandbox="native" if arguments.native else "wasm",
        seed=arguments.seed,
    )
    config, prepared = prepare_here(arguments.model, is_native=arguments.native, config_file=arguments.config)
    return run_here(spec, config, prepared)


def prepare_here(
    model: str | None, *, is_native: bool = False, config_file: str | None = None
) -> tuple[Config, Prepared]:
    """Begins what a system of one's own needs: before the caller starts threads, so that `prepare` may fork."""
    config = config_here(model, is_native=is_native, config_file=config_file)
    with progress_bars() as report:
        return config, prepare(config, report)


def config_here(model: str | None, *, is_native: bool, config_file: str | None) -> Config:
    """The configuration of a system in this process."""
    config = load_config(config_file, model_flags([model] if model else None)).config
    runtime = msgspec.structs.replace(
        config.runtime, allows_native=is_native, needs_wasm=not is_native, holds_deadline=not is_native
    )
    return msgspec.structs.replace(config, runtime=runtime, processes=1)


def run_here(spec: RunSpec, config: Config, prepared: Prepared) -> int:
    """Runs a program in a system of its own and prints its events. Returns the exit status."""
    return run_work(_run(spec, config, prepared))


class _Help(argparse.Action):
    """Explains the verb, and the program whose file came before."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.print_help()
        if namespace.file is not None:
            _, program = _read(namespace.file)
            sys.stdout.write(f"\n{program.filename}:\n")
            program_parser(program, f"{parser.prog} {namespace.file}").print_help()
        parser.exit()


def _read(path: str) -> tuple[str, Program]:
    source = read_source(path)
    return source, read_program(source, Path(path).name)


def _command(path: str) -> str:
    return f"loopwright run {path}"


def _seed(word: str) -> int:
    if word.isdecimal() and int(word) <= MAX_SEED:
        return int(word)
    raise argparse.ArgumentTypeError(f"{word!r} is no number from 0 to {MAX_SEED}")


async def _run(spec: RunSpec, config: Config, prepared: Prepared) -> int:
    async with open_system(config, prepared) as system:
        return await _print_events(system.runs, spec)


async def _print_events(runs: Runs, spec: RunSpec) -> int:
    run_id = await runs.start(spec)
    text_end, text = "", io.StringIO()  # what the text ends with so far, and all of it
    typed = TypedLines(sys.__stdin__.fileno() if sys.__stdin__ is not None else -1)
    async with _one_at_a_time() as answer, open_events(runs, run_id) as events:
        async for event in events:
            match event:
                case Text():
                    text_end = event.text[-1:] or text_end
                    text.write(event.text)
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
                case Log():
                    text_end = _aside(f"[{event.stream}] {event.line}", text_end)
                case Emit():
                    text_end = _aside(f"[emit] {json.dumps(event.value, ensure_ascii=False)}", text_end)
                case ToolCall():
                    took = f"{event.outcome}, {event.duration_s:.2f} s"
                    text_end = _aside(f"[tool] {event.name}({event.arguments}): {took}", text_end)
                case Finished():
                    return _print_end(event, text.getvalue(), text_end)
                case Receive():
                    answer(_pass_on(typed, runs, run_id))
                case Started() | Tokens():
                    pass
    raise AssertionError("a run's events end with a final one")


def _aside(line: str, text_end: str) -> str:
    """Says something on stderr. On a terminal it gets a line of its own, where the text stands in the middle of one;
    what the text ends with then is returned."""
    is_between = text_end not in ("", "\n") and sys.stdout.isatty() and sys.stderr.isatty()
    sys.stderr.write(f"\n{line}\n" if is_between else f"{line}\n")
    return "\n" if is_between else text_end


@asynccontextmanager
async def _one_at_a_time() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Does work beside the block; what is not done is given up at its end."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield lambda work: tasks.append(asyncio.create_task(work))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(typed: TypedLines, runs: Runs, run_id: RunId) -> None:
    """The next line that is typed, to the program that asked; the end of the input is its end too."""
    line = await typed.next()
    with suppress(BadRequest):  # the run is over: it asked, and did not wait
        await runs.send(run_id, ClientInput(is_end=True) if line is None else ClientInput((line,)))


def _print_end(event: Finished, text: str, text_end: str) -> int:
    """What main returned too, unless it is the text that was shown. In a pipe it comes alone, or not at all."""
    if text_end not in ("", "\n"):
        sys.stdout.write("\n")
    if event.error is not None:
        sys.stdout.flush()
        sys.stderr.write(_describe(event.error))
        return 1
    if event.result is not None and not text:
        sys.stdout.write(_as_text(event.result) + "\n")
    elif event.result is not None and event.result != text:
        sys.stdout.flush()
        sys.stderr.write(f"[result] {json.dumps(event.result, ensure_ascii=False)}\n")
    return 0


def _describe(error: ErrorInfo) -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return f"{error.traceback}loopwright: {error.code}: {error.message}{hint}\n"


def _as_text(result: Any) -> str:  # noqa: ANN401 (JSON)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
