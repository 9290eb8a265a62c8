"""`loopwright model`: pull a model into the cache, list what is there. Never loads one."""

import argparse
import sys

from loopwright.cli.progress import progress_bars
from loopwright.cli.tables import print_table
from loopwright.weights import store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="pull|list")
    pull = verbs.add_parser("pull", help="fetch a model", epilog="example: loopwright model pull SmolLM2-135M-Instruct")
    pull.add_argument("name", help="a known name, or a Hub id such as Qwen/Qwen3-0.6B")
    verbs.add_parser("list", help="list the models in the cache", epilog="example: loopwright model list")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "list":
        return _list()
    with progress_bars() as report:
        files = store.pull(arguments.name, report)
    sys.stdout.write(f"{files.name}: {files.path}\n")
    return 0


def _list() -> int:
    rows = [
        (row.name, f"{row.size_bytes / 1e6:.0f} MB", row.license, row.sha256[:12], str(row.path))
        for row in store.list_models()
    ]
    print_table(("name", "size", "licence", "SHA-256", "path"), rows, "Models in the cache")
    return 0
