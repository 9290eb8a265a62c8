"""Case A4. Programs that mean harm run beside an honest chat stream: they read the machine's files, dial where they may
not, compute, allocate, recurse, log or ask for ever, end their process, send a pickle or 100 MiB, and call what is not
theirs. Each ends with an error of its own type that names what it
was allowed, nothing was read, dialled or unpickled, and the stream says what it says when it is alone."""

import asyncio
import pickle
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_rig import Served, served

from abi_messages import is_call, messages
from loopwright.compose.config import RuntimeConfig
from system_rig import byte_system, in_loop

pytestmark = pytest.mark.wasm

SECRET = "the secret of this machine"

READS_A_FILE = """
from pathlib import Path
async def main(path: str):
    return Path(path).read_text()
"""

LISTS_THE_MACHINE = """
import os
async def main():
    return [os.listdir("/"), os.listdir("..")]
"""

DIALS = """
# /// program
# permissions = { http = ["example.org", "127.0.0.1:1"] }
# ///
from loopwright import http
async def main(port: int):
    return await http.get_text(f"http://127.0.0.1:{port}/")
"""

DIALS_BY_ITSELF = """
import socket
async def main(port: int):
    socket.socket().connect(("127.0.0.1", port))
"""

SPINS = """
# /// program
# limits = { cpu_seconds = 0.2 }
# ///
async def main():
    while True: pass
"""

ALLOCATES = """
# /// program
# limits = { memory_mb = 32 }
# ///
async def main():
    kept = []
    while True: kept.append(bytearray(1 << 20))
"""

SENDS_A_PICKLE = """
import asyncio
from loopwright.sdk.port import current_port
async def main(payload: str):
    port = current_port()
    answer = asyncio.get_running_loop().create_future()
    port._futures[port._submit(payload)] = answer
    return await answer
"""


RECURSES = """
import sys
async def main():
    sys.setrecursionlimit(10**7)
    def deeper(n): return deeper(n + 1)
    deeper(0)
"""

RECURSES_IN_C = """
async def main():
    nested = []
    for _ in range(200_000): nested = [nested]
    repr(nested)
"""

LEAVES = """
import os
async def main():
    os._exit(3)
"""

MAKES_A_STRING = """
async def main():
    return len("x" * (512 << 20))
"""

SENDS_A_STRING = """
# /// program
# limits = { memory_mb = 500 }
# ///
from loopwright.sdk.port import current_port
async def main():
    return await current_port().issue({"op": "tokenize", "text": "x" * (100 << 20)})
"""

RETURNS_A_STRING = """
# /// program
# limits = { memory_mb = 500 }
# ///
async def main():
    return "x" * (50 << 20)
"""

FLOODS_LOGS = """
async def main():
    while True: print("x")
"""

FLOODS_WITH_CALLS = """
from loopwright.sdk.port import current_port
async def main():
    port = current_port()
    while True: port._submit('{"op": "vocabulary"}')
"""

FLOODS_THE_ENGINE = """
import asyncio
from loopwright.sdk.port import current_port
async def main():
    port = current_port()
    port.post({"op": "create_queue", "queue": 1})
    row = {"op": "forward_text", "queue": 1, "pages": [], "kv_len": 0, "tokens": [1], "positions": [0]}
    await asyncio.gather(*(port.issue({**row, "grow_from": n}) for n in range(5000)))
"""

MEDDLES = """
import asyncio
from loopwright.sdk.port import current_port
async def main():
    port, refused = current_port(), 0
    for handle in range(-5, 500):
        for op in ("interrupt", "cancel"): await port.issue({"op": op, "handle": handle})
    await port.issue({"op": "create_queue", "queue": 7})
    for queue in range(20):
        for op in ({"op": "free_pages", "pages": [queue]}, {"op": "clear_queue"}):
            try: await port.issue({**op, "queue": queue})
            except Exception: refused += 1
    raise SystemExit(f"refused {refused}")
"""

LIGHTS_A_BOMB = """
# /// program
# permissions = { children = ["@self"] }
# limits = { max_children = 4, cpu_seconds = 0.5, memory_mb = 16 }
# ///
import asyncio
from loopwright import LimitExceeded, spawn
async def main():
    for _ in range(5):
        try: await spawn(main)
        except LimitExceeded: break
    while True: sum(range(10_000))
"""

BURNS_THROUGH_CHILDREN = """
# /// program
# permissions = { children = ["@self"] }
# limits = { cpu_seconds = 0.5, memory_mb = 16 }
# ///
from loopwright import spawn
async def burn():
    for _ in range(1000): sum(range(1000))
async def main():
    while True: await (await spawn(burn)).wait()
"""

BABBLES = """
from loopwright.sdk.port import current_port
async def main(texts: list):
    port, answers = current_port(), []
    for text in texts:
        answers.append(port._submit(text))
    await port.issue({"op": "describe"})
    raise ValueError(f"{len(answers)} messages were no calls")
"""


class Trap:
    """Who unpickles it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


Hostile = tuple[str, dict[str, Any], str, str]
"""A program, its arguments, and the type and the words of the error that it ends with."""


def hostile_programs(secret: Path, payload: bytes, babble: list[str], port: int) -> list[Hostile]:
    return [
        (READS_A_FILE, {"path": str(secret)}, "ProgramError", "FileNotFoundError"),
        (READS_A_FILE, {"path": "/etc/passwd"}, "ProgramError", "FileNotFoundError"),
        (LISTS_THE_MACHINE, {}, "ProgramError", "Error"),
        (DIALS, {"port": port}, "PermissionDenied", f"may not reach 127.0.0.1:{port}"),
        (DIALS_BY_ITSELF, {"port": port}, "ProgramError", "PermissionError"),
        (SPINS, {}, "LimitExceeded", "its limit is 0.2 s"),
        (ALLOCATES, {}, "LimitExceeded", "its limit is 32 MiB"),
        (RECURSES, {}, "ProgramError", "(nested too deeply|RecursionError|aborted)"),
        (RECURSES_IN_C, {}, "ProgramError", "(nested too deeply|RecursionError)"),
        (LEAVES, {}, "ProgramError", "ended its process with exit code"),
        (MAKES_A_STRING, {}, "LimitExceeded", "its limit is 64 MiB"),
        (SENDS_A_STRING, {}, "LimitExceeded", r"a call has 1048\d+ characters; the limit is 8388608"),
        (RETURNS_A_STRING, {}, "LimitExceeded", "result has 52428802 characters; the limit .* is 4194304"),
        (FLOODS_LOGS, {}, "LimitExceeded", "its limit is 1000 a second"),
        (FLOODS_WITH_CALLS, {}, "LimitExceeded", r"bytes of answers wait .* the limit is 67108864"),
        (FLOODS_THE_ENGINE, {}, "LimitExceeded", "1024 calls are open; the limit is 1024"),
        (
            LIGHTS_A_BOMB,
            {},
            "LimitExceeded",
            r"computed for 0\.\d s, .* in what it started; its limit is 0\.5 s",
        ),
        (
            BURNS_THROUGH_CHILDREN,
            {},
            "LimitExceeded",
            r"computed for 0\.\d s, .* in what it started; its limit is 0\.5 s",
        ),
        (MEDDLES, {}, "ProgramError", "refused 39"),
        (BABBLES, {"texts": babble}, "ProgramError", f"{len(babble)} messages were no calls"),
        (SENDS_A_PICKLE, {"payload": payload.decode("latin-1")}, "BadRequest", "malformed call"),
    ]


def test_hostile_programs_end_with_an_error_each_and_touch_nothing(tmp_path: Path) -> None:
    secret, sprung = tmp_path / "secret", tmp_path / "sprung"
    secret.write_text(SECRET)
    payload = pickle.dumps(Trap(sprung), protocol=0)
    babble = [text for text in messages(seed=5, num=500) if not is_call(text) and text.isascii()]

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system, served(system) as client:
            expected_text = await honest_chat(client)
            with listening_socket() as (listener, port):
                hostile = hostile_programs(secret, payload, babble, port)
                running = asyncio.gather(*(client.run_source(source, **given) for source, given, _, _ in hostile))
                texts = [await honest_chat(client)]
                while not running.done():
                    texts.append(await honest_chat(client))
                answers = await running
                for answer, (_, _, kind, message) in zip(answers, hostile, strict=True):
                    error = answer.json().get("error")
                    assert error, (message, answer.text[:1000])
                    assert error["type"] == kind, error
                    assert re.search(message, error["message"]), error
                    assert answer.status_code >= 400
                    assert SECRET not in answer.text
                    assert "root:" not in answer.text
                assert set(texts) == {expected_text}
                runs = (await client.http.get("/v1/runs")).json()["runs"]
                assert any(one["parent"] for one in runs)
                assert {one["state"] for one in runs} == {"done"}  # nothing of any tree is left
                assert not was_dialled(listener)
                assert not sprung.exists()

    in_loop(scenario)


def test_a_pickle_is_refused_or_is_text_on_every_route(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    payload = pickle.dumps(Trap(sprung), protocol=0)
    text = payload.decode("latin-1")
    user = [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"model": "byte", "max_tokens": 4, "messages": user},
        "/v1/runs": {"source": text},
        "/v1/programs": {"name": "trap", "source": text},
        "/v1/programs/echo/runs": {"arguments": {"value": text}, "stream": False},
    }
    expected = {"/v1/chat/completions": 200, "/v1/runs": 422, "/v1/programs": 422, "/v1/programs/echo/runs": 200}

    async def scenario() -> None:
        async with byte_system(runtime=RuntimeConfig()) as system, served(system) as client:
            echo = {"name": "echo", "source": "async def main(value: str):\n    return value\n"}
            assert (await client.http.post("/v1/programs", json=echo)).status_code == 200
            for path, body in bodies.items():
                for media_type, status in (("application/python-pickle", 415), ("application/json", 400)):
                    raw = await client.http.post(path, content=payload, headers={"content-type": media_type})
                    assert raw.status_code == status, (path, raw.text)
                answer = await client.http.post(path, json=body)
                assert answer.status_code == expected[path], (path, answer.text)
            assert answer.json()["result"] == text
            assert not sprung.exists()
            pickle.loads(payload)  # the trap does work
            assert sprung.exists()

    in_loop(scenario)


async def honest_chat(client: Served) -> str:
    """A seeded stream whose text names every token: ids above ASCII are as good as forbidden."""
    ascii_only = {str(token): -100 for token in range(128, 260)}
    return await client.stream_chat("Count.", max_tokens=100, temperature=1, seed=3, logit_bias=ascii_only)


@contextmanager
def listening_socket() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener, listener.getsockname()[1]


def was_dialled(listener: socket.socket) -> bool:
    try:
        listener.accept()
    except BlockingIOError:
        return False
    return True


def test_the_listener_of_these_tests_sees_who_dials() -> None:
    with listening_socket() as (listener, port):
        assert not was_dialled(listener)
        socket.create_connection(("127.0.0.1", port)).close()
        assert was_dialled(listener)
