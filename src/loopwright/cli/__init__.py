"""The command line: a table of verbs, each a module of its own that is imported when it is asked for.

Never computes: a verb parses its flags, asks the layers below and prints. Errors end as one line on stderr.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loopwright.core.errors import LoopwrightError

INTERRUPTED = 130  # the exit status that shells give for SIGINT


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
    takes_program_flags: bool = False  # flags it does not know are the program's, and so is all that follows `--`


VERBS: dict[str, Verb] = {
    "run": Verb(
        "loopwright.cli.run",
        "run a program here, beside a model",
        'loopwright run programs/react.py --question "Which river flows through Paris?"',
        takes_program_flags=True,
    ),
    "new": Verb("loopwright.cli.new", "write a program to begin with", "loopwright new hello --template chat"),
    "dev": Verb(
        "loopwright.cli.dev",
        "run a program again at every save, and show what it does token by token",
        "loopwright dev hello.py --name Ada",
        takes_program_flags=True,
    ),
    "check": Verb(
        "loopwright.cli.check", "find what is wrong with programs, without running them", "loopwright check hello.py"
    ),
    "serve": Verb("loopwright.cli.serve", "serve a model and programs over HTTP", "loopwright serve --port 8000"),
    "config": Verb(
        "loopwright.cli.config",
        "show every setting of a server: its value, its source and its meaning",
        "loopwright config show --port 9000",
    ),
    "doctor": Verb(
        "loopwright.cli.doctor", "say what would compute on this machine, and why", "loopwright doctor --dtype int8"
    ),
    "deploy": Verb("loopwright.cli.deploy", "put a program on a server", "loopwright deploy programs/react.py"),
    "undeploy": Verb("loopwright.cli.undeploy", "remove a program from a server", "loopwright undeploy react"),
    "programs": Verb("loopwright.cli.programs", "list a server's deployed programs", "loopwright programs"),
    "ps": Verb("loopwright.cli.ps", "list a server's runs", "loopwright ps --all"),
    "logs": Verb("loopwright.cli.logs", "show a run's events", "loopwright logs 5f0c9a77d21b43e8"),
    "send": Verb("loopwright.cli.send", "say something to a run", 'loopwright send 5f0c9a77d21b43e8 "go on"'),
    "cancel": Verb("loopwright.cli.cancel", "end a run", "loopwright cancel 5f0c9a77d21b43e8"),
    "model": Verb("loopwright.cli.model", "pull and list models", "loopwright model pull default"),
    "demo": Verb("loopwright.cli.demo", "run the ReACT agent against a small search tool", "loopwright demo"),
    "bench": Verb("loopwright.cli.bench", "measure, and print a table", "loopwright bench launch --json launch.json"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit status: 0 is success, 1 failure, 130 interrupted; wrong usage exits with 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a program may print what the terminal cannot show
    try:
        try:
            return _run_verb(words)
        finally:
            sys.stdout.flush()  # here, where a reader that has gone is not a traceback
    except LoopwrightError as error:
        return _fail(_one_line(error))
    except KeyboardInterrupt:
        sys.stderr.write("loopwright: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what reads our output has gone: not an error
        return 0
    except OSError as error:
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")


def _run_verb(words: Sequence[str]) -> int:
    if not words or words[0] not in VERBS:
        parser = _top_parser()
        parser.parse_args(words[:1] or ["--help"])
        parser.error(f"no verb {words[0]!r}; the verbs are {', '.join(VERBS)}")
    verb = VERBS[words[0]]
    module: VerbModule = importlib.import_module(verb.module)
    parser = argparse.ArgumentParser(
        prog=f"loopwright {words[0]}",
        description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog=f"example:\n  {verb.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=not verb.takes_program_flags,  # such a verb also explains the program's
    )
    module.add_arguments(parser)
    if not verb.takes_program_flags:
        return module.run(parser.parse_args(words[1:]))
    end = words.index("--") if "--" in words else len(words)
    arguments, unknown = parser.parse_known_args(words[1:end])
    arguments.program_flags = [*unknown, *words[end + 1 :]]
    return module.run(arguments)


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {verb.summary}" for name, verb in VERBS.items()]
    parser = argparse.ArgumentParser(
        prog="loopwright",
        usage="loopwright VERB [options]",
        description="Programs beside a language model.\n\nverbs:\n" + "\n".join(lines),
        epilog="example:\n  loopwright run programs/hello.py --name World\n  loopwright VERB --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
    return parser


def _fail(line: str) -> int:
    sys.stderr.write(f"loopwright: {line}\n")
    return 1


def _one_line(error: LoopwrightError) -> str:
    message = " ".join(error.message.split())
    return f"{message} ({error.hint})" if error.hint else message
