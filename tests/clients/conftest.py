"""Servers in processes of their own, for the clients of this folder. Imports nothing of the project's: each group of
clients has an environment of its own, and the server runs in the project's (`LOOPWRIGHT_TEST_PYTHON`)."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEY = "the-right-key"
MODEL = "scripted"
PLAIN = "Hello there, this is a scripted model."
LONG = "Count to 20000"
TOO_LONG = "x" * 40_000
TIMEOUT_S = 60
SHOUT = 'async def main(text: str) -> str:\n    return text.upper() + "!"\n'

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1", "NO_PROXY": "127.0.0.1"}


@dataclass
class Server:
    """A server and how to reach it."""

    process: "subprocess.Popen[str]"
    url: str
    model: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def fetch(self, path: str, body: str | None = None) -> str:
        """Without any of the clients that are tested."""
        words = ["curl", "-sSf", "-H", f"authorization: Bearer {KEY}", f"{self.url}{path}"]
        words += [] if body is None else ["-H", "content-type: application/json", "-d", body]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout

    def num_running(self) -> int:
        return int(float(re.findall(r"^loopwright:num_requests_running (\S+)$", self.fetch("/metrics"), re.M)[0]))

    def becomes_idle(self) -> bool:
        """Whether what runs ends before long, though nobody asks for its end."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while self.num_running() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return self.num_running() == 0

    def stop(self) -> None:
        """Says that it is to stop, and does not wait."""
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def running(words: list[str], model: str, find_port: Callable[[str], str | None]) -> Iterator[Server]:
    """A server that says its port in some line of its output."""
    python = os.environ.get("LOOPWRIGHT_TEST_PYTHON", str(ROOT / ".venv/bin/python"))
    process = subprocess.Popen(
        [python, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment()
    )
    assert process.stdout is not None
    told: list[str] = []
    try:
        for line in process.stdout:
            told.append(line)
            if port := find_port(line):
                yield Server(process, f"http://127.0.0.1:{port}", model)
                break
        else:
            raise RuntimeError(f"the server did not start: {''.join(told)}")
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@contextmanager
def scripted(*flags: str) -> Iterator[Server]:
    words = ["tests/clients/client_server.py", "--with-keys", *flags]
    with running(words, MODEL, lambda line: line.strip() if line.strip().isdigit() else None) as server:
        yield server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all tests that leave it running; with a deployed program."""
    with scripted() as server:
        server.fetch("/v1/programs", json.dumps({"name": "shout", "source": SHOUT}))
        yield server


@pytest.fixture
def stopping() -> Iterator[Server]:
    """One for a test that stops it."""
    with scripted() as server:
        yield server


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Server]:
    """`loopwright serve` with the real default model, which has no keys."""

    def port(line: str) -> str | None:
        found = re.search(r"at http://127\.0\.0\.1:(\d+)/v1", line)
        return found[1] if found else None

    with running(["-m", "loopwright", "serve", "--port", "0"], "SmolLM2-135M-Instruct", port) as server:
        yield server


def _environment() -> dict[str, str]:
    """That of the server: the project's own packages, and none of the clients'."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTHONHOME"))}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
