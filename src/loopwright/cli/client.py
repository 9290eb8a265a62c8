"""The command line's HTTP client for a running server. Never starts one. Used by deploy, undeploy,
programs, ps, logs, send and cancel."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from loopwright.core.errors import LoopwrightError, Unavailable

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "LOOPWRIGHT_API_KEY"


def add_url_argument(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("LOOPWRIGHT_URL", DEFAULT_URL)
    parser.add_argument("--url", default=default, help=f"the server (default: $LOOPWRIGHT_URL, or {DEFAULT_URL})")


@contextmanager
def server_client(url: str) -> Iterator[httpx.Client]:
    """A client whose failures are one-line errors."""
    key = os.environ.get(KEY_VARIABLE, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False) as client:
            yield client
    except httpx.ConnectError:
        raise Unavailable(
            f"no server answers at {url}", hint="start one with `loopwright serve`, or name another with --url"
        ) from None
    except httpx.UnsupportedProtocol:
        raise Unavailable(f"{url!r} is no URL of a server", hint=f"write it like {DEFAULT_URL}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{url}: {error or type(error).__name__}") from None


def run_path(run_id: str) -> str:
    """The path of a run, whatever its id is made of."""
    return f"/v1/runs/{quote(run_id, safe='')}"


def program_path(name: str) -> str:
    """The path of a program, whatever its name is made of."""
    return f"/v1/programs/{quote(name, safe='')}"


def short(version: Mapping[str, Any]) -> str:
    """What tells versions of a program apart, as people read it: the beginning of the source's hash."""
    return str(version["source_sha256"][:12])


def checked(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a successful response; a LoopwrightError with the server's message otherwise."""
    response.read()
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    match body:
        case {"error": {"message": str(message)}}:
            hint = f"set {KEY_VARIABLE} to your key" if response.status_code == httpx.codes.UNAUTHORIZED else ""
            raise LoopwrightError(f"the server answered {response.status_code}: {message}", hint=hint)
    raise LoopwrightError(
        f"{response.url} answered {response.status_code}, and not as a Loopwright server does",
        hint="name another server with --url",
    )


def follow_events(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """The events of a run's server-sent stream, decoded, up to the final one. Raises when it ends before that."""
    with client.stream("GET", path, timeout=httpx.Timeout(30.0, read=None)) as response:
        if not response.is_success:
            checked(response)
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            event: dict[str, Any] = json.loads(line[5:])
            if "error" in event and "type" not in event:  # what the server says when it cannot go on
                raise LoopwrightError(f"the server ended the stream: {event['error']['message']}")
            yield event
            if event["type"] == "done":
                return
    raise LoopwrightError("the server ended the stream before the run's final event")
