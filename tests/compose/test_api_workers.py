"""HTTP in processes of its own: whichever one a connection reaches answers as the first process would."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_rig import Server, eventually, run_command, serving

pytestmark = pytest.mark.wasm

COMPLETION = {"model": "byte", "prompt": "abc", "max_tokens": 6, "ignore_eos": True, "temperature": 0}
WAITER = """
import asyncio
from loopwright import emit_text

async def main():
    emit_text("waits")
    await asyncio.sleep(1000)
"""
HELLO = "async def main(): return 'hello'"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, byte_gguf: Path) -> Iterator[Server]:
    flags = ("--model", byte_gguf, "--processes", "2", "--api-workers", "2", "--set", "server.grace_s=60")
    with serving(tmp_path_factory.mktemp("api"), *flags) as server:
        yield server


def ask(server: Server, method: str, path: str, **options: Any) -> httpx.Response:
    """Over a connection of its own, so that any of the processes may get it."""
    return httpx.request(method, f"{server.url}{path}", timeout=60, **options)


def model_of(server: Server) -> str:
    name: str = ask(server, "GET", "/v1/models").json()["data"][0]["id"]
    return name


def completion(server: Server, **changes: Any) -> dict[str, Any]:
    return {**COMPLETION, "model": model_of(server), **changes}


def test_all_of_them_answer_alike_and_share_what_is_in_one_place(server: Server) -> None:
    assert set(server.workers()) == {"model", "runtime-0", "api-0", "api-1"}
    body = completion(server)
    texts = {ask(server, "POST", "/v1/completions", json=body).json()["choices"][0]["text"] for _ in range(8)}
    assert len(texts) == 1
    streamed = ask(server, "POST", "/v1/completions", json={**body, "stream": True}).text
    assert streamed.rstrip().endswith("data: [DONE]")
    asked = {"model": body["model"], "input": "abc", "max_output_tokens": 4}
    response = ask(server, "POST", "/v1/responses", json=asked).json()
    again = [ask(server, "GET", f"/v1/responses/{response['id']}") for _ in range(8)]
    assert {one.json()["id"] for one in again} == {response["id"]}
    assert ask(server, "DELETE", f"/v1/responses/{response['id']}").status_code == 200
    assert {ask(server, "GET", f"/v1/responses/{response['id']}").status_code for _ in range(8)} == {404}
    missing = ask(server, "GET", "/v1/nothing?x=1")
    assert (missing.status_code, "/v1/nothing" in missing.json()["error"]["message"]) == (404, True)
    assert "loopwright:generation_tokens_total" in ask(server, "GET", "/metrics").text


def test_a_run_is_found_whoever_started_it_and_ends_when_its_client_leaves(server: Server) -> None:
    deployed = ask(server, "POST", "/v1/programs", json={"name": "hello", "source": HELLO})
    assert deployed.status_code in (200, 201), deployed.text
    assert {ask(server, "POST", "/v1/programs/hello/runs", json={}).text.count("hello") > 0 for _ in range(4)} == {True}
    with httpx.stream("POST", f"{server.url}/v1/runs", json={"source": WAITER}, timeout=60) as stream:
        lines = stream.iter_lines()
        run_id = next(line for line in lines if '"run"' in line).split('"run":"')[1].split('"')[0]
        assert any("waits" in line for line in lines)
        with httpx.stream("GET", f"{server.url}/v1/runs/{run_id}/events", timeout=60) as other:
            assert any("waits" in line for line in other.iter_lines())
    eventually(lambda: state_of(server, run_id) != "running")


def state_of(server: Server, run_id: str) -> str:
    runs = ask(server, "GET", "/v1/runs").json()
    listed = runs["runs"] if isinstance(runs, dict) else runs
    state: str = next(one["state"] for one in listed if one["run"] == run_id)
    return state


def test_one_that_dies_is_started_again_and_so_is_what_they_all_depend_on(server: Server) -> None:
    before, body = server.workers(), completion(server)
    endless = {**body, "max_tokens": 3000, "stream": True}
    with ExitStack() as streams:
        for _ in range(8):  # over any of the two
            stream = streams.enter_context(
                httpx.stream("POST", f"{server.url}/v1/completions", json=endless, timeout=60)
            )
            next(stream.iter_lines())
        for name in ("api-0", "api-1"):
            os.kill(before[name], signal.SIGKILL)
        eventually(lambda: server.workers().get("api-1") not in (None, before["api-1"]))
        eventually(lambda: "running" not in states(server))  # what they had started is cancelled
        assert states(server).count("cancelled") >= 8
    eventually(lambda: server.workers().get("api-0") not in (None, before["api-0"]))
    os.kill(before["runtime-0"], signal.SIGKILL)
    eventually(lambda: server.workers().get("runtime-0") not in (None, before["runtime-0"]))
    eventually(lambda: all(is_answered(server, body) for _ in range(12)))


def states(server: Server) -> list[str]:
    """Of each run: how it ended, or that it is running."""
    try:
        return [one["code"] or one["state"] for one in ask(server, "GET", "/v1/runs").json()["runs"]]
    except httpx.TransportError:
        return ["running"]


def is_answered(server: Server, body: dict[str, Any]) -> bool:
    try:
        return ask(server, "POST", "/v1/completions", json=body).status_code == 200
    except httpx.TransportError:
        return False


def test_on_sigterm_streams_under_way_end_by_themselves_and_nobody_is_left(server: Server) -> None:
    """A run's events are sent on by the process that has the connection, which waits for them too."""
    pids = server.workers().values()
    body = completion(server, max_tokens=400, stream=True)
    source = WAITER.replace("1000", "3")
    with (
        httpx.stream("POST", f"{server.url}/v1/runs", json={"source": source}, timeout=60) as run,
        httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream,
    ):
        lines, run_lines = stream.iter_lines(), run.iter_lines()
        next(lines)
        next(run_lines)
        os.kill(server.running.pid, signal.SIGTERM)
        eventually(lambda: is_refused(server))
        text = "\n".join(lines)
        assert any('"done"' in line for line in run_lines)
    assert text.rstrip().endswith("data: [DONE]")
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert server.running.end().status == 0


def is_refused(server: Server) -> bool:
    """Also by a reset: what waits in a socket's queue when the last process closes it."""
    try:
        ask(server, "GET", "/health")
    except (httpx.ConnectError, httpx.ReadError):
        return True
    return False


def test_they_need_programs_in_processes_of_their_own(tmp_path: Path, byte_gguf: Path) -> None:
    done = run_command("serve", "--model", byte_gguf, "--processes", "1", "--api-workers", "2")
    assert "server.api_workers is 2" in done.error_line()
