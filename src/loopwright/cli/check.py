"""`loopwright check`: says what is wrong with programs before they run. Never runs one."""

import argparse
import json
import sys
from pathlib import Path

import msgspec

from loopwright.cli.findings import line_of
from loopwright.cli.interrupts import run_work
from loopwright.cli.program_flags import read_source
from loopwright.cli.progress import Report, progress_bars
from loopwright.compose.config import Config
from loopwright.compose.config_sources import load_config
from loopwright.runtime.offer_check import Offer
from loopwright.runtime.program_check import check_program
from loopwright.runtime.sandboxes.runner_build import is_intact, prepare_runner, runner_files
from loopwright.runtime.sandboxes.runner_modules import runner_modules
from loopwright.weights.store import cache_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE.py", nargs="+", help="the programs")
    parser.add_argument("--config", metavar="FILE.toml", help="also say what a server so configured would not give")
    parser.add_argument("--json", action="store_true", help="what was found as one JSON list")


def run(arguments: argparse.Namespace) -> int:
    offer = offer_of(load_config(arguments.config).config) if arguments.config else None
    sources = {path: read_source(path) for path in arguments.files}
    with progress_bars() as report:
        modules = sandbox_modules(report)
    found = {path: check_program(source, Path(path).name, modules, offer) for path, source in sources.items()}
    if arguments.json:
        rows = [{"file": path, **msgspec.to_builtins(one)} for path, findings in found.items() for one in findings]
        sys.stdout.write(json.dumps(rows, ensure_ascii=False, indent=2) + "\n")
    else:
        for path, findings in found.items():
            sys.stdout.writelines(f"{line_of(path, one)}\n" for one in findings)
    return 1 if any(found.values()) else 0


def offer_of(config: Config) -> Offer:
    """What a server with that configuration gives a program."""
    tools = config.tools
    return Offer(config.runtime.caps, tools=frozenset(tools.http), mcp_servers=frozenset(tools.mcp))


def sandbox_modules(report: Report) -> frozenset[str]:
    """What can be imported in the sandbox; builds the runner if this machine has none."""
    return run_work(runner_modules(prepare_runner(cache_folder(), report)))


def known_modules() -> frozenset[str] | None:
    """Likewise, where that costs nothing: None if this machine has no runner."""
    files = runner_files(cache_folder() / "runner")
    return run_work(runner_modules(files)) if is_intact(files.compiled) else None
