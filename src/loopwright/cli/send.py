"""`loopwright send`: a message to a run of a server, for its `receive`. Never waits until it is read."""

import argparse
import json
from typing import Any

from loopwright.cli.client import add_url_argument, checked, run_path, server_client
from loopwright.core.errors import BadRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's id, as `loopwright ps` lists it")
    parser.add_argument("text", nargs="?", help="the message, a text")
    parser.add_argument("--json", action="store_true", help="TEXT is JSON, and the message is its value")
    parser.add_argument("--end", action="store_true", help="no message comes after this")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {"end": arguments.end}
    if arguments.text is not None:
        body["message"] = _value(arguments)
    with server_client(arguments.url) as client:
        checked(client.post(f"{run_path(arguments.run)}/messages", json=body))
    return 0


def _value(arguments: argparse.Namespace) -> Any:  # noqa: ANN401 (JSON)
    if not arguments.json:
        return arguments.text
    try:
        return json.loads(arguments.text)
    except ValueError as error:
        raise BadRequest(f"{arguments.text!r} is not JSON: {error}", hint="leave --json out to send a text") from None
