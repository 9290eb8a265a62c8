"""`loopwright demo`: the ReACT agent in the Wasm sandbox, against a small search tool on loopback.

Never knows what the agent does: it gives it a question and the tool's address.
"""

import argparse
from pathlib import Path

from loopwright.cli.demo_search import search_tool
from loopwright.cli.program_flags import read_source
from loopwright.cli.run import prepare_here, run_here
from loopwright.core.runs import RunSpec

QUESTION = "Which river flows through Paris?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--program", default=str(_agent()), help="the agent (default: programs/react.py)")
    parser.add_argument("--question", default=QUESTION, help="what to ask it (default: %(default)s)")
    parser.add_argument("--model", default="default", help="a model's name, GGUF file, folder or Hub id")


def run(arguments: argparse.Namespace) -> int:
    source = read_source(arguments.program)
    config, prepared = prepare_here(arguments.model)
    with search_tool() as url:
        spec = RunSpec(
            source=source,
            filename=Path(arguments.program).name,
            arguments={"question": arguments.question, "search_url": url},
        )
        return run_here(spec, config, prepared)


def _agent() -> Path:
    """The repository's agent, or the copy of it that a wheel carries."""
    here, carried = Path("programs", "react.py"), Path(__file__).parents[1] / "programs" / "react.py"
    return here if here.exists() or not carried.exists() else carried
