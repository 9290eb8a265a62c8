"""`loopwright undeploy`: removes a program from a server. Never ends a run of it."""

import argparse
import sys

from loopwright.cli.client import add_url_argument, checked, program_path, server_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the program's name on the server, as `loopwright deploy` said it")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with server_client(arguments.url) as client:
        checked(client.delete(program_path(arguments.name)))
    sys.stdout.write(f"{arguments.name}: removed\n")
    return 0
