"""`loopwright doctor`: what would compute on this machine, and why nothing better. Never starts a server."""

import argparse
import json
import sys
from dataclasses import asdict

from loopwright.cli.setting_flags import add_setting_flags, load_with_flags
from loopwright.cli.tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as a list of objects, for a program to read")
    add_setting_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    from loopwright.compose.doctor import examine  # noqa: PLC0415 (wasmtime, which other verbs need not wait for)

    findings = list(examine(load_with_flags(arguments).config))
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(one) for one in findings], indent=2, ensure_ascii=False) + "\n")
        return 0
    print_table(("what", "found", "advice"), [(one.what, one.found, one.advice) for one in findings], "This machine")
    return 0
