"""The command line: a table of verbs, each a module of its own that is imported when it is asked for.

Never computes: a verb parses its flags, asks the layers below and prints. Errors end as one line on stderr.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loopwright.core.errors import LoopwrightError


class VerbModule(Protocol):
    """What the module of a verb has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: the module behind it, what it does, and an example."""

    module: str
    summary: str
    example: str
    takes_program_flags: bool = False  # flags it does not know are the program's


VERBS: dict[str, Verb] = {
    "run": Verb(
        "loopwright.cli.run",
        "run a program here, beside a model",
        'loopwright run programs/react.py --question "Which river flows through Paris?"',
        takes_program_flags=True,
    ),
    "serve": Verb("loopwright.cli.serve", "serve a model and programs over HTTP", "loopwright serve --port 8000"),
    "deploy": Verb("loopwright.cli.deploy", "put a program on a server", "loopwright deploy programs/react.py"),
    "ps": Verb("loopwright.cli.ps", "list a server's runs", "loopwright ps"),
    "logs": Verb("loopwright.cli.logs", "show a run's events", "loopwright logs 5f0c9a77d21b43e8"),
    "cancel": Verb("loopwright.cli.cancel", "end a run", "loopwright cancel 5f0c9a77d21b43e8"),
    "model": Verb("loopwright.cli.model", "pull and list models", "loopwright model pull default"),
    "demo": Verb("loopwright.cli.demo", "run the ReACT agent against a small search tool", "loopwright demo"),
    "bench": Verb("loopwright.cli.bench", "measure, and print a table", "loopwright bench launch --json launch.json"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit status: 0 is success, 1 failure, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _top_parser()
    if not words or words[0] not in VERBS:
        arguments = parser.parse_args(words or ["--help"])  # prints help, or the usage line of an unknown verb
        return arguments.status if hasattr(arguments, "status") else 2
    try:
        return _run_verb(words[0], words[1:])
    except LoopwrightError as error:
        sys.stderr.write(f"loopwright: {_one_line(error)}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("loopwright: interrupted\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what reads our output has gone: not an error
        return 0


def _run_verb(name: str, words: list[str]) -> int:
    verb = VERBS[name]
    module: VerbModule = importlib.import_module(verb.module)
    parser = argparse.ArgumentParser(
        prog=f"loopwright {name}",
        description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog=f"example:\n  {verb.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    if verb.takes_program_flags:
        arguments, arguments_rest = parser.parse_known_args(words)
        arguments.program_flags = arguments_rest
    else:
        arguments = parser.parse_args(words)
    return module.run(arguments)


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return argparse.ArgumentParser(
        prog="loopwright",
        usage="loopwright VERB [options]",
        description="Programs beside a language model.\n\nverbs:\n" + "\n".join(lines),
        epilog="example:\n  loopwright run programs/hello.py --name World\n  loopwright VERB --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _one_line(error: LoopwrightError) -> str:
    message = " ".join(error.message.split())
    return f"{message} ({error.hint})" if error.hint else message
