"""`loopwright programs`: the programs that are deployed on a server, as a table. Never changes or runs one."""

import argparse
from typing import Any

from loopwright.cli.client import add_url_argument, checked, server_client, short
from loopwright.cli.tables import print_table

COLUMNS = ("program", "version", "deployed by", "parameters", "permissions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with server_client(arguments.url) as client:
        programs = checked(client.get("/v1/programs"))["programs"]
    print_table(COLUMNS, map(_row, programs), f"Programs on {arguments.url}")
    return 0


def _row(program: dict[str, Any]) -> tuple[str, ...]:
    return (
        program["name"],
        short(program),
        program["deployed_by"] or "nobody",
        ", ".join(map(_parameter, program["parameters"])),
        "; ".join(f"{kind}: {', '.join(names)}" for kind, names in program["permissions"].items()),
    )


def _parameter(parameter: dict[str, Any]) -> str:
    """As main declares it."""
    declared = f"{parameter['name']}: {parameter['type']}"
    return declared if parameter["is_required"] else f"{declared} = {parameter.get('default')!r}"
