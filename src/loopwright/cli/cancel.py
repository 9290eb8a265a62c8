"""`loopwright cancel`: asks a run of a server to end. Never waits until it has."""

import argparse
import sys

from loopwright.cli.client import add_url_argument, checked, run_path, server_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's id, as `loopwright ps` lists it")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with server_client(arguments.url) as client:
        checked(client.post(f"{run_path(arguments.run)}/cancel", json={}))
    sys.stdout.write(f"{arguments.run}: asked to end\n")
    return 0
