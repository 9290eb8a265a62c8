"""The command line's HTTP client for a running server. Never starts one. Used by deploy, ps, logs and cancel."""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from loopwright.core.errors import LoopwrightError, Unavailable

DEFAULT_URL = "http://127.0.0.1:8000"


def add_url_argument(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("LOOPWRIGHT_URL", DEFAULT_URL)
    parser.add_argument("--url", default=default, help="the server (default: $LOOPWRIGHT_URL or %(default)s)")


@contextmanager
def server_client(url: str) -> Iterator[httpx.Client]:
    """A client whose failures are one-line errors."""
    try:
        with httpx.Client(base_url=url, timeout=30.0, trust_env=False) as client:
            yield client
    except httpx.ConnectError:
        raise Unavailable(f"no server answers at {url}", hint="start one with `loopwright serve`") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{url}: {error or type(error).__name__}") from None


def checked(response: httpx.Response) -> Any:  # noqa: ANN401 (JSON)
    """The JSON of a successful response; a LoopwrightError with the server's message otherwise."""
    if response.is_success:
        return response.json()
    response.read()
    try:
        message = response.json()["error"]["message"]
    except (json.JSONDecodeError, KeyError, TypeError):
        message = response.text[:200]
    raise LoopwrightError(f"the server answered {response.status_code}: {message}")


def follow_events(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """The events of a server-sent stream, decoded."""
    with client.stream("GET", path, timeout=httpx.Timeout(30.0, read=None)) as response:
        if not response.is_success:
            checked(response)
        for line in response.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line[5:])
