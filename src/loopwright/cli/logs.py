"""`loopwright logs`: the events of a run, one a line, until it ends. Never changes it."""

import argparse
import json
import sys
import time

from loopwright.cli.client import add_url_argument, follow_events, run_path, server_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's id, as `loopwright ps` lists it")
    parser.add_argument("--json", action="store_true", help="each event as a line of JSON")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with server_client(arguments.url) as client:
        for event in follow_events(client, f"{run_path(arguments.run)}/events"):
            line = json.dumps(event, ensure_ascii=False) if arguments.json else _line(event)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    return 0


def _line(event: dict[str, object]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(float(str(event["time_s"]))))
    rest = {name: value for name, value in event.items() if name not in ("run", "seq", "time_s", "type")}
    return f"{at} {event['type']:8} {json.dumps(rest, ensure_ascii=False)}"
