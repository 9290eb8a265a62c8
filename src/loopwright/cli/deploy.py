"""`loopwright deploy`: puts a program on a server, where it is a route and a model name. Never runs it."""

import argparse
import re
import sys
from pathlib import Path

from loopwright.cli.client import add_url_argument, checked, server_client
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
    name = arguments.name or re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-")
    with server_client(arguments.url) as client:
        body = {"name": name, "source": source, "filename": path.name}
        checked(client.post("/v1/programs", json=body))
    url = arguments.url.rstrip("/")
    sys.stdout.write(f'{name}: POST {url}/v1/programs/{name}/runs, or model="program:{name}"\n')
    return 0
