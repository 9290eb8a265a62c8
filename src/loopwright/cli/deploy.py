"""`loopwright deploy`: puts a program on a server, where it is a route and a model name. Never runs it."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from loopwright.cli.check import known_modules
from loopwright.cli.client import add_url_argument, checked, server_client, short
from loopwright.cli.findings import line_of, refuse_broken
from loopwright.cli.program_flags import read_source
from loopwright.runtime.program import read_program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.py", help="the program")
    parser.add_argument("--name", help="its name on the server (default: the file's name)")
    add_url_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.file)
    source = read_source(arguments.file)
    read_program(source, path.name)  # what is wrong with it is said here, without a server
    findings = refuse_broken(source, path.name, known_modules())
    sys.stderr.writelines(f"{line_of(arguments.file, one)}\n" for one in findings)
    name = arguments.name or re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-")
    with server_client(arguments.url) as client:
        body = {"name": name, "source": source, "filename": path.name}
        deployed = checked(client.post("/v1/programs", json=body))
    url = arguments.url.rstrip("/")
    if deployed["replaced"] is not None:
        sys.stderr.write(f"loopwright: {_told(name, deployed)}\n")
    if findings:
        sys.stderr.write(f"loopwright: {name} is deployed all the same\n")
    sys.stdout.write(f'{name}: POST {url}/v1/programs/{name}/runs, or model="program:{name}"\n')
    return 0


def _told(name: str, deployed: dict[str, Any]) -> str:
    """What was there under the name before, and from another file's name, if it was: two files may come to one."""
    before, filename = deployed["replaced"], deployed["filename"]
    if before["source_sha256"] == deployed["source_sha256"]:
        return f"{name} was deployed before, with the same source"
    versions = f"{name} was deployed before: {short(before)} is replaced by {short(deployed)}"
    if before["filename"] == filename:
        return versions
    return f"{versions}; that was {before['filename']}, and this is {filename} (--name gives each a name of its own)"
