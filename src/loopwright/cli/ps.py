"""`loopwright ps`: the runs of a server, as a table."""

import argparse
import time

from rich.console import Console
from rich.table import Table

from loopwright.cli.client import add_url_argument, checked, server_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="runs that have ended, too")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with server_client(arguments.url) as client:
        runs = checked(client.get("/v1/runs"))["data"]
    table = Table("run", "program", "state", "started", "seconds", "events", title=f"Runs on {arguments.url}")
    for one in runs:
        if one["state"] == "running" or arguments.all:
            started = time.strftime("%H:%M:%S", time.localtime(one["started_s"]))
            state = one["code"] or one["state"]
            table.add_row(one["run"], one["program"], state, started, f"{one['seconds_s']:.1f}", str(one["num_events"]))
    Console().print(table)
    return 0
