"""serve and the verbs that ask a server (deploy, programs, ps …), and what they say when there is none."""

import hashlib
import json
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from command_rig import Server, run_command, running, serving, workers_of, write_program

pytestmark = pytest.mark.wasm

WAITER = "import asyncio\nasync def main(): print('waits'); await asyncio.sleep(1000)"


@pytest.fixture(scope="module", params=["1", "3"], ids=["one process", "several processes"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, byte_gguf: Path
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, "--model", byte_gguf, "--processes", request.param) as server:
        yield server


def start(server: Server, program: str, **arguments: object) -> str:
    """Starts a run that goes on by itself; returns its id."""
    url = f"{server.url}/v1/programs/{program}/runs?detach=true"
    with httpx.stream("POST", url, json={"arguments": arguments}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        return response.headers["x-run-id"]


def rows(server: Server, *flags: str, verb: str = "ps") -> dict[str, list[str]]:
    """The cells of `loopwright ps`, by run, or of `loopwright programs`, by name."""
    done = server.command(verb, *flags)
    assert (done.status, done.err) == (0, "")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in lines}


def test_a_deployed_program_is_a_route_and_a_model_name(server: Server, tmp_path: Path):
    program = write_program(tmp_path, "async def main(name: str = 'you'): return f'Hello, {name}'", "say_hello.py")
    done = server.command("deploy", program)
    assert (done.status, done.err) == (0, "")
    assert done.out == f'say-hello: POST {server.url}/v1/programs/say-hello/runs, or model="program:say-hello"\n'
    body = {"arguments": {"name": "Ada"}, "stream": False}
    answer = httpx.post(f"{server.url}/v1/programs/say-hello/runs", json=body, timeout=60)
    assert answer.json()["result"] == "Hello, Ada"
    models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert "program:say-hello" in [model["id"] for model in models]


LISTED = """
# /// program
# permissions = { http = ["api.example.org"], channels = ["jobs", "room/*"] }
# ///
async def main(name: str, times: int = 2): return name * times
"""


def test_deployed_programs_are_listed_with_version_parameters_and_permissions(server: Server, tmp_path: Path):
    assert server.command("deploy", write_program(tmp_path, LISTED, "listed.py")).status == 0
    version = hashlib.sha256(LISTED.encode()).hexdigest()[:12]
    permissions = "http: api.example.org; channels: jobs, room/*"
    cells = [version, "nobody", "name: str, times: int = 2", permissions]
    assert rows(server, verb="programs")["listed"] == cells
    assert server.command("undeploy", "listed").status == 0
    assert "listed" not in rows(server, verb="programs")


def test_deploying_under_a_name_that_is_there_says_what_is_replaced(server: Server, tmp_path: Path):
    first, second = (f"async def main(): return {number}\n" for number in (1, 2))
    short = [hashlib.sha256(source.encode()).hexdigest()[:12] for source in (first, second)]
    assert server.command("deploy", write_program(tmp_path, first, "one_name.py")).err == ""
    again = server.command("deploy", tmp_path / "one_name.py")
    assert (again.status, again.err) == (0, "loopwright: one-name was deployed before, with the same source\n")
    changed = server.command("deploy", write_program(tmp_path, second, "one_name.py"))
    replaced = f"loopwright: one-name was deployed before: {short[0]} is replaced by {short[1]}"
    assert (changed.status, changed.err) == (0, f"{replaced}\n")
    assert server.command("deploy", write_program(tmp_path, first, "one_name.py")).status == 0
    other = server.command("deploy", write_program(tmp_path, second, "one-name.py"))
    files = "that was one_name.py, and this is one-name.py (--name gives each a name of its own)"
    assert (other.status, other.err) == (0, f"{replaced}; {files}\n")
    assert rows(server, verb="programs")["one-name"][0] == short[1]


def test_what_check_finds_is_said_when_a_program_is_deployed_and_one_that_cannot_run_is_refused(
    server: Server, tmp_path: Path
):
    doubtful = write_program(tmp_path, "import time, requests\nasync def main(): time.sleep(1)\n", "doubtful.py")
    done = server.command("deploy", doubtful)
    hint = "time.sleep holds up the whole program, its other tasks too (write await asyncio.sleep(…))"
    module, sandbox, last = done.err.splitlines()
    assert module.startswith(f"{doubtful}:1:1: module: the sandbox has no module 'requests'")
    assert sandbox == f"{doubtful}:2:19: sandbox: {hint}"
    assert (done.status, last) == (0, "loopwright: doubtful is deployed all the same")
    assert done.out.startswith("doubtful: POST ")
    broken = write_program(tmp_path, "def ask(x): return await x\nasync def main(): ...\n", "broken.py")
    line = server.command("deploy", broken).error_line()
    assert line == "broken.py, line 1: 'await' outside async function (write async def)"
    assert "broken" not in rows(server, verb="programs")


def test_a_program_that_was_removed_is_no_route_and_no_model_name(server: Server, tmp_path: Path):
    assert server.command("deploy", write_program(tmp_path, WAITER, "to_remove.py")).status == 0
    line = server.command("undeploy", "to_remove").error_line()
    assert "no program 'to_remove' is deployed; did you mean to-remove?" in line
    done = server.command("undeploy", "to-remove")
    assert (done.status, done.out, done.err) == (0, "to-remove: removed\n", "")
    assert httpx.post(f"{server.url}/v1/programs/to-remove/runs", json={}).status_code == 404
    models = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert "program:to-remove" not in [model["id"] for model in models]


def test_a_run_is_listed_followed_and_cancelled(server: Server, tmp_path: Path):
    assert server.command("deploy", write_program(tmp_path, WAITER, "waiter.py")).status == 0
    run_id = start(server, "waiter")
    assert rows(server)[run_id][:2] == ["waiter", "running"]
    done = server.command("cancel", run_id)
    assert (done.status, done.out, done.err) == (0, f"{run_id}: asked to end\n", "")
    logs = server.command("logs", "--json", run_id)  # ends with the run
    events = [json.loads(line) for line in logs.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "started"
    assert [event["code"] for event in events if event["type"] == "done"] == ["cancelled"]
    assert events[-1]["type"] == "done"
    assert run_id not in rows(server)
    assert rows(server, "--all")[run_id][:2] == ["waiter", "cancelled"]


def test_logs_shows_an_event_a_line(server: Server, tmp_path: Path):
    assert (
        server.command("deploy", write_program(tmp_path, "async def main(): print('a line')", "liner.py")).status == 0
    )
    done = server.command("logs", start(server, "liner"))
    assert (done.status, done.err) == (0, "")
    assert [line.split()[1] for line in done.out.splitlines()] == ["started", "log", "done"]
    assert '"line": "a line"' in done.out


def test_an_interrupt_of_logs_is_one_line_and_leaves_the_run(server: Server, tmp_path: Path):
    assert server.command("deploy", write_program(tmp_path, WAITER, "waiter.py")).status == 0
    run_id = start(server, "waiter")
    words = ("logs", run_id, "--url", server.url)
    with running(*words, err=tmp_path / "err") as process:
        assert process.process.stdout is not None
        assert "started" in process.process.stdout.readline()
        done = process.stop(signal.SIGINT)
    assert (done.status, done.err) == (130, "loopwright: interrupted\n")
    assert rows(server)[run_id][1] == "running"
    assert server.command("cancel", run_id).status == 0


@pytest.mark.parametrize("run_id", ["0123456789abcdef", "../models", "a b?c#d", "ü"])
@pytest.mark.parametrize("verb", ["logs", "cancel"])
def test_a_run_that_nobody_knows_is_one_line(verb: str, run_id: str, server: Server):
    line = server.command(verb, run_id).error_line()
    assert "404" in line
    assert "no run" in line or "no route" in line


def test_a_name_that_cannot_be_one_is_one_line(server: Server, tmp_path: Path):
    program = write_program(tmp_path, "async def main(): ...")
    assert "'A B' cannot name a program" in server.command("deploy", program, "--name", "A B").error_line()


WORDS = [["ps"], ["programs"], ["logs", "x"], ["cancel", "x"], ["deploy", "program.py"], ["undeploy", "x"]]


@pytest.mark.parametrize("words", WORDS)
def test_without_a_server_a_verb_says_how_to_start_one(words: list[str], tmp_path: Path):
    write_program(tmp_path, "async def main(): ...")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        line = run_command(*words, "--url", url, cwd=tmp_path).error_line()
    assert line == (f"no server answers at {url} (start one with `loopwright serve`, or name another with --url)")


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://[", "http://127.0.0.1:port", ""])
def test_a_url_that_is_none_is_one_line(url: str):
    assert run_command("ps", "--url", url).error_line()


@pytest.mark.parametrize("words", WORDS)
def test_another_kind_of_server_is_one_line(words: list[str], tmp_path: Path):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    write_program(tmp_path, "async def main(): ...")
    with HTTPServer(("127.0.0.1", 0), Quiet) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{other.server_address[1]}"
            assert "not as a Loopwright server does" in run_command(*words, "--url", url, cwd=tmp_path).error_line()
        finally:
            other.shutdown()
            thread.join()


def test_a_busy_port_is_said_before_the_model_is_looked_for():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        line = run_command("serve", "--port", str(port), "--model", "no-such-model").error_line()
    assert line == f"port {port} of 127.0.0.1 is in use (stop what uses it, or choose another with --port)"


@pytest.mark.parametrize(
    ("flag", "value", "complaint"),
    [
        ("--processes", "0", "processes is '0', from --processes: expected `int` >= 1"),
        ("--processes", "many", "processes is 'many', from --processes: "),
        ("--num-blocks", "-1", "engine.num_blocks is '-1', from --num-blocks: expected `int` >= 0"),
        ("--port", "http", "server.port is 'http', from --port: expected `int`"),
    ],
)
def test_a_wrong_value_of_a_flag_of_serve_is_one_line_with_its_limit(flag: str, value: str, complaint: str):
    assert run_command("serve", flag, value).error_line().startswith(complaint)


@pytest.mark.parametrize(("flag", "value"), [("--port", "65536"), ("--host", "not.an.address.invalid")])
def test_an_address_that_cannot_be_bound_is_one_line(flag: str, value: str):
    assert value in run_command("serve", flag, value).error_line()


@pytest.mark.parametrize("processes", ["1", "3"])
@pytest.mark.parametrize(
    ("number", "status", "last"),
    [(signal.SIGINT, 130, "loopwright: interrupted\n"), (signal.SIGTERM, 0, "")],
)
def test_a_server_that_is_stopped_leaves_no_process(
    number: signal.Signals, status: int, last: str, processes: str, tmp_path: Path, byte_gguf: Path
):
    with serving(tmp_path, "--model", byte_gguf, "--processes", processes) as server:
        workers = server.workers()
        assert len(workers) == (0 if processes == "1" else 3)
        assert server.command("deploy", write_program(tmp_path, WAITER, "waiter.py")).status == 0
        start(server, "waiter")  # stops with a run under way
        ready_line = server.running.err
        done = server.running.stop(number)
        assert (done.status, done.out, done.err) == (status, "", ready_line + last)
        assert server.workers() == {}


def test_a_server_that_is_interrupted_while_it_starts_leaves_no_process(tmp_path: Path, byte_gguf: Path):
    words = ("serve", "--port", "0", "--processes", "3", "--model", byte_gguf, "--programs-dir", tmp_path)
    with running(*words, err=tmp_path / "err") as process:
        process.until(lambda: "model" in workers_of(tmp_path))
        done = process.stop(signal.SIGINT)
        assert workers_of(tmp_path) == {}
    assert (done.status, done.err) == (130, "loopwright: interrupted\n")


def test_a_server_finds_what_was_deployed_before(tmp_path: Path, byte_gguf: Path):
    with serving(tmp_path, "--model", byte_gguf, "--processes", "1") as server:
        assert server.command("deploy", write_program(tmp_path, WAITER, "kept.py")).status == 0
    with serving(tmp_path, "--model", byte_gguf, "--processes", "3") as server:
        assert [one["name"] for one in httpx.get(f"{server.url}/v1/programs").json()["programs"]] == ["kept"]


def test_a_server_with_keys_gets_the_one_in_the_environment(tmp_path: Path, byte_gguf: Path):
    with serving(tmp_path, "--model", byte_gguf, "--set", 'server.keys={"ann": "key-of-ann"}') as server:
        environment = {"LOOPWRIGHT_URL": server.url}
        refused = run_command("ps", env=environment)
        assert (refused.status, refused.out) == (1, "")
        assert "has no key" in refused.err
        assert "(set LOOPWRIGHT_API_KEY to your key)" in refused.err
        assert run_command("ps", env={**environment, "LOOPWRIGHT_API_KEY": "another"}).status == 1
        own = {**environment, "LOOPWRIGHT_API_KEY": "key-of-ann"}
        served = run_command("ps", env=own)
        assert (served.status, served.err) == (0, "")
        program = write_program(tmp_path, "async def main(): ...", "of_ann.py")
        assert run_command("programs", env=environment).status == 1
        assert run_command("deploy", program, env=own).status == 0
        assert " ann " in run_command("programs", env=own).out
