"""`loopwright ps`: the runs of a server, as a table. Never changes one."""

import argparse
import time
from typing import Any

from loopwright.cli.client import add_url_argument, checked, server_client
from loopwright.cli.tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="runs that have ended, too")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with server_client(arguments.url) as client:
        runs = checked(client.get("/v1/runs"))["runs"]
    rows = [_row(one) for one in runs if one["state"] == "running" or arguments.all]
    print_table(("run", "program", "state", "started", "seconds", "events", "parent"), rows, f"Runs on {arguments.url}")
    return 0


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    started = time.strftime("%H:%M:%S", time.localtime(run["started_s"]))
    state = run["code"] or run["state"]
    return (
        run["run"],
        run["program"],
        state,
        started,
        f"{run['seconds_s']:.1f}",
        str(run["num_events"]),
        run["parent"] or "",
    )
