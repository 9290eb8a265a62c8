"""Runs that talk across processes: over channels and stores, with `send`, and with who types at `run`."""

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from command_rig import COMMAND, TIMEOUT_S, Server, environment, eventually, serving, write_program

pytestmark = pytest.mark.wasm

HEAD = """
# /// program
# permissions = { channels = ["room", "jobs"], state = ["notes"] }
# ///
from loopwright import Store, broadcast, emit, emit_text, pull, push, receive, subscribe
"""
LISTENER = (
    HEAD
    + """
async def main():
    async with subscribe("room") as messages:
        await push("jobs", "ready")
        return await messages.next()
"""
)
SPEAKER = (
    HEAD
    + """
async def main(num_listeners: int):
    for _ in range(num_listeners):
        await pull("jobs")
    return await broadcast("room", {"from": "the other side"})
"""
)
COUNTER = (
    HEAD
    + """
async def main():
    notes = Store("notes")
    while True:
        count = await notes.get("count")
        if await notes.compare_and_set("count", count, str(int(count or 0) + 1)):
            return await notes.get("count")
"""
)
ECHO = (
    HEAD
    + """
async def main():
    emit_text("Say something.\\n")
    while (text := await receive()) is not None:
        emit_text(f"You said {text!r}.\\n")
    return "bye"
"""
)


@pytest.fixture(scope="module", params=["1", "3"], ids=["one process", "several processes"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, byte_gguf: Path
) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--model", byte_gguf, "--processes", request.param) as server:
        yield server


def start(server: Server, source: str, **arguments: object) -> str:
    """Starts a run that goes on by itself; returns its id."""
    body = {"source": source, "arguments": arguments}
    with httpx.stream("POST", f"{server.url}/v1/runs?detach=true", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        return response.headers["x-run-id"]


def result(server: Server, run_id: str) -> object:
    """What the run returns, once it does."""
    (done,) = [event for event in events(server, run_id) if event["type"] == "done"]
    assert done["code"] == "ok", done
    return done["result"]


def events(server: Server, run_id: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in server.command("logs", "--json", run_id).out.splitlines()]


def test_runs_meet_wherever_they_run(server: Server):
    listeners = [start(server, LISTENER) for _ in range(4)]
    speaker = start(server, SPEAKER, num_listeners=4)
    assert result(server, speaker) == 4
    assert [result(server, one) for one in listeners] == [{"from": "the other side"}] * 4
    counters = [start(server, COUNTER) for _ in range(4)]
    assert sorted(int(str(result(server, one))) for one in counters) == [1, 2, 3, 4]


def test_a_named_store_is_there_after_a_restart(tmp_path: Path, byte_gguf: Path):
    for processes, count in (("1", "1"), ("3", "2")):
        with serving(tmp_path, "--model", byte_gguf, "--processes", processes) as server:
            assert result(server, start(server, COUNTER)) == count


def test_a_run_hears_what_is_sent_until_the_end(server: Server):
    run_id = start(server, ECHO)
    for words in (["hello"], ["--json", '["two", 3]'], ["last", "--end"]):
        done = server.command("send", run_id, *words)
        assert (done.status, done.out, done.err) == (0, "", "")
    assert result(server, run_id) == "bye"
    text = "".join(str(event["text"]) for event in events(server, run_id) if event["type"] == "text")
    assert text == "Say something.\nYou said 'hello'.\nYou said ['two', 3].\nYou said 'last'.\n"
    assert "is over" in server.command("send", run_id, "late").error_line()


def test_what_cannot_be_sent_is_one_line(server: Server):
    run_id = start(server, ECHO)
    assert "null" in server.command("send", run_id, "--json", "null").error_line()
    assert "is not JSON" in server.command("send", run_id, "--json", "{").error_line()
    assert "message: is required" in server.command("send", run_id).error_line()
    assert "no run" in server.command("send", "nobody", "x").error_line()
    answer = httpx.post(f"{server.url}/v1/runs/{run_id}/messages", json={"text": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text")
    assert server.command("send", run_id, "--end").status == 0
    assert result(server, run_id) == "bye"


def test_what_is_piped_into_run_is_received_line_by_line(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, ECHO)
    for text, answers in (("one\ntwo\r\nü", ["'one'", "'two'", "'ü'"]), ("", []), ("\n\nx\n", ["''", "''", "'x'"])):
        done = subprocess.run(
            [COMMAND, "run", str(program), "--model", str(byte_gguf)],
            input=text.encode(), capture_output=True, timeout=TIMEOUT_S, check=False, env=environment(),
        )  # fmt: skip
        assert done.stderr == b'[result] "bye"\n'
        assert done.stdout.decode().splitlines() == ["Say something.", *(f"You said {one}." for one in answers)]


def test_a_file_is_input_too_and_a_program_that_asks_nothing_leaves_it_alone(tmp_path: Path, byte_gguf: Path):
    (tmp_path / "lines").write_text("from a file\n")
    words = [COMMAND, "run", "--model", str(byte_gguf)]
    with (tmp_path / "lines").open() as lines:
        quiet = write_program(tmp_path, "async def main(): return 'asked nothing'", "quiet.py")
        assert subprocess.check_output([*words, quiet], stdin=lines, text=True) == "asked nothing\n"
        assert lines.read() == "from a file\n"
    with (tmp_path / "lines").open() as lines:
        out = subprocess.check_output([*words, write_program(tmp_path, ECHO)], stdin=lines, text=True)
    assert out == "Say something.\nYou said 'from a file'.\n"


def test_somebody_at_a_terminal_talks_to_a_program(tmp_path: Path, byte_gguf: Path):
    mine, its = pty.openpty()
    out = (tmp_path / "out").open("w+")
    words = [COMMAND, "run", str(write_program(tmp_path, ECHO)), "--model", str(byte_gguf)]
    process = subprocess.Popen(words, stdin=its, stdout=out, stderr=subprocess.DEVNULL, env=environment())
    try:
        said = tmp_path / "out"
        eventually(lambda: "Say something." in said.read_text())
        os.write(mine, b"hello\n")
        eventually(lambda: "You said 'hello'." in said.read_text())
        os.write(mine, b"\x04")  # the end of what is typed
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        out.close()
        os.close(mine)
        os.close(its)
