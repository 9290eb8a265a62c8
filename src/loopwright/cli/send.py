"""`loopwright send`: a message to a run of a server, for its `receive`. Never waits until it is read."""

import argparse
import json
from typing import Any

from loopwright.cli.client import add_url_argument, checked, run_path, server_client
from loopwright.core.errors import BadRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's id, as `loopwright ps` lists it")
    message = parser.add_mutually_exclusive_group()
    message.add_argument("text", nargs="?", help="the message")
    message.add_argument("--json", metavar="VALUE", help="the message, as JSON")
    parser.add_argument("--end", action="store_true", help="no message comes after this")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    body: dict[str, Any] = {"end": arguments.end}
    if arguments.text is not None:
        body["message"] = arguments.text
    elif arguments.json is not None:
        body["message"] = _read_json(arguments.json)
    with server_client(arguments.url) as client:
        checked(client.post(f"{run_path(arguments.run)}/messages", json=body))
    return 0


def _read_json(word: str) -> Any:  # noqa: ANN401 (JSON)
    try:
        return json.loads(word)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{word!r} is not JSON: {error}", hint="leave --json out to send a text") from None
