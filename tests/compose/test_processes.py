"""A server of several processes: the same answers as one process gives, and what happens when one of them dies."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from command_rig import Server, eventually, run_command, serving, write_byte_gguf
from loopwright.compose import children
from loopwright.compose.children import Ready, Starting
from loopwright.core.errors import Unavailable

pytestmark = pytest.mark.wasm

QUESTIONS = ("What is the capital of France?", "Count from one to five.")

WAITER = """
import asyncio
from loopwright import emit_text

async def main():
    emit_text("waits")
    await asyncio.sleep(1000)
"""

GENERATOR = """
from loopwright import Context, emit_text

async def main():
    ctx = Context()
    ctx.append("on and on")
    emit_text("generates")
    while True:
        await ctx.generate(max_tokens=64, ignore_eos=True)
        ctx = Context()
        ctx.append("on and on")
"""

HELLO = "async def main(): return 'hello'"


async def test_what_a_child_does_before_it_serves_is_told_and_so_is_its_failure() -> None:
    stages = [msgspec.json.encode(Starting("capturing graphs", fraction)) for fraction in (0.5, 1.0)]
    told: list[tuple[str, float | None]] = []
    ready = msgspec.json.encode(Ready())
    await child_that_says(*stages, ready).ready(lambda stage, fraction: told.append((stage, fraction)))
    assert told == [("capturing graphs", 0.5), ("capturing graphs", 1.0)]
    await child_that_says(*stages, ready).ready()  # one that is started again has nobody to tell
    failed = msgspec.json.encode(Ready(Unavailable("no room").info()))
    with pytest.raises(Unavailable, match="no room"):
        await child_that_says(stages[0], failed).ready()


def child_that_says(*lines: bytes) -> children._Child:
    stdout = asyncio.StreamReader()
    for line in lines:
        stdout.feed_data(line + b"\n")
    return children._Child("model", SimpleNamespace(stdout=stdout))  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path, byte_gguf: Path) -> Iterator[Server]:
    with serving(tmp_path, "--model", byte_gguf, "--processes", "3") as server:
        yield server


@pytest.mark.model
def test_several_processes_answer_as_one_does(tmp_path: Path):
    answers = {}
    for processes in ("1", "3"):
        (tmp_path / processes).mkdir()
        with serving(tmp_path / processes, "--processes", processes) as server:
            answers[processes] = chats(server)
            assert len(server.workers()) == (0 if processes == "1" else 3)
    assert answers["1"] == answers["3"]
    assert "Paris" in answers["1"][0]


def chats(server: Server) -> list[str]:
    """Each question's answer; asserts that the streamed one is the same."""
    texts = []
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        model = client.models.list().data[0].id
        for question in QUESTIONS:
            messages: Any = [{"role": "user", "content": question}]
            options: Any = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 32}
            whole = client.chat.completions.create(**options).choices[0].message.content
            stream = client.chat.completions.create(**options, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" for chunk in stream]) == whole
            texts.append(whole)
    return texts


def test_a_dead_runtime_worker_ends_its_own_runs_and_no_others(server: Server):
    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as tasks:
            runs = [await Reader.start(client, tasks, WAITER) for _ in range(6)]
            counted = await metrics_of(client)
            assert (counted["launches_total"], counted["num_requests_running"]) == (6, 6), "of both workers"
            os.kill(server.workers()["runtime-0"], signal.SIGKILL)
            ended = await first_ended(runs, 3)  # of six, on two workers
            assert len(ended) == 3
            for run in ended:
                assert run.codes() == ["internal"]
                assert run.events[-1]["type"] == "done"
                assert "died" in run.events[-1]["error"]["message"]
                assert [event["seq"] for event in run.events] == list(range(len(run.events)))
            for run in runs:
                if run not in ended:
                    assert (await client.post(f"/v1/runs/{run.run_id}/cancel")).status_code == 202
                    await run.task
                    assert run.codes() == ["cancelled"]
            for run in ended:  # what it did stays readable
                told = await client.get(f"/v1/runs/{run.run_id}/events")
                events = [json.loads(line[5:]) for line in told.text.splitlines() if line.startswith("data:")]
                assert events == run.events
                listed = {info["run"]: info for info in (await client.get("/v1/runs")).json()["runs"]}
                assert (listed[run.run_id]["state"], listed[run.run_id]["code"]) == ("done", "internal")
                assert json.loads(server.command("logs", run.run_id, "--json").out.splitlines()[0]) == run.events[0]
            for _ in range(4):
                assert (await run_to_end(client, HELLO)).json()["result"] == "hello"
            assert (await client.post("/v1/programs", json={"name": "hello", "source": HELLO})).status_code == 200
            answer = await client.post("/v1/programs/hello/runs", json={"stream": False})
            assert answer.json()["result"] == "hello"
            assert (await client.get("/health")).status_code == 200
            counted = await metrics_of(client)
            assert (counted["launches_total"], counted["num_requests_running"]) == (6 + 5, 0), "the dead one's stay"
            assert counted["num_kv_blocks"] == 2048, "what workers share counts once"

    asyncio.run(scenario())
    assert "the runtime-0 process ended with status -9: its runs are over, and another is started" in server.running.err
    assert "Traceback" not in server.running.err
    assert server.command("ps", "--all").status == 0


async def metrics_of(client: httpx.AsyncClient) -> Counter[str]:
    """Each metric's value, over all labels."""
    values: Counter[str] = Counter()
    for family in text_string_to_metric_families((await client.get("/metrics")).raise_for_status().text):
        for one in family.samples:
            values[one.name.removeprefix("loopwright:")] += one.value  # type: ignore[assignment]
    return values


def test_dead_runtime_workers_are_started_again_with_what_was_deployed(server: Server):
    async def scenario() -> None:
        async with client_of(server) as client:
            assert (await client.post("/v1/programs", json={"name": "hello", "source": HELLO})).status_code == 200
            first = server.workers()
            for name in ("runtime-0", "runtime-1"):
                os.kill(first[name], signal.SIGKILL)
            server.running.until(lambda: server.running.err.count("ended with status -9") == 2)
            answer = await run_to_end(client, HELLO)
            if answer.status_code != 200:  # unless one is up already
                assert answer.status_code == 503
                assert "one is being started; try again" in answer.json()["error"]["message"]
            server.running.until(lambda: server.running.err.count("process is there again") == 2)
            second = server.workers()
            assert second.keys() == first.keys()
            assert second["model"] == first["model"]
            assert {second["runtime-0"], second["runtime-1"]}.isdisjoint(first.values())
            for _ in range(4):
                answer = await client.post("/v1/programs/hello/runs", json={"stream": False})
                assert answer.json()["result"] == "hello"

    asyncio.run(scenario())
    assert "Traceback" not in server.running.err
    assert server.running.stop(signal.SIGTERM).status in (0, -signal.SIGTERM)
    eventually(lambda: server.workers() == {})


def test_a_dead_model_worker_ends_every_request_with_an_error(server: Server):
    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as tasks:
            runs = [await Reader.start(client, tasks, GENERATOR) for _ in range(4)]
            body = {"model": "byte", "messages": [{"role": "user", "content": "on"}], "max_tokens": 3000}
            chat = tasks.create_task(client.post("/v1/chat/completions", json=body))
            os.kill(server.workers()["model"], signal.SIGKILL)
            async with asyncio.timeout(60):
                await asyncio.gather(*(run.task for run in runs))
                assert (await chat).status_code >= 500
            for run in runs:
                assert run.codes() == ["internal"]
                assert "the model worker died" in run.events[-1]["error"]["message"]
            for answer in (await client.get("/health"), await client.post("/v1/chat/completions", json=body)):
                assert answer.status_code == 503
                if answer.status_code != 200:  # unless there is another already
                    assert answer.status_code == 503
                    assert "the model worker died; it is being started again" in answer.json()["error"]["message"]

    asyncio.run(scenario())
    message = "the model process ended with status -9: what its model was doing has failed, and another is started"
    server.running.until(lambda: message in server.running.err)
    assert "Traceback" not in server.running.err


def test_a_model_worker_is_started_again_however_often_it_dies_and_answers_as_before(server: Server):
    async def scenario() -> None:
        async with client_of(server) as client:
            before = await chat(client)
            assert before.status_code == 200
            first = server.workers()
            os.kill(first["model"], signal.SIGKILL)
            eventually(lambda: server.workers().get("model", first["model"]) != first["model"])
            os.kill(server.workers()["model"], signal.SIGKILL)  # while it loads, or soon after
            again = await well_again(client)
            assert again.json()["choices"] == before.json()["choices"]
            assert (await client.get("/health")).status_code == 200
            second = server.workers()
            assert second.keys() == first.keys()
            assert second["model"] != first["model"]
            assert {second[name] for name in second if name != "model"} == {
                first[name] for name in first if name != "model"
            }  # those who run programs are the same
            assert (await run_to_end(client, HELLO)).json()["result"] == "hello"

    asyncio.run(scenario())
    assert "Traceback" not in server.running.err
    assert server.running.stop(signal.SIGTERM).status in (0, -signal.SIGTERM)
    eventually(lambda: server.workers() == {})


async def chat(client: httpx.AsyncClient) -> httpx.Response:
    messages = [{"role": "user", "content": "on and on"}]
    body = {"model": "byte", "messages": messages, "max_tokens": 16, "temperature": 0}
    return await client.post("/v1/chat/completions", json=body)


async def well_again(client: httpx.AsyncClient) -> httpx.Response:
    """The first answer that is one. Meanwhile every chat ends, with an error, and health says that it is not well."""
    async with asyncio.timeout(120):
        while True:
            answer = await chat(client)
            if answer.status_code == 200:
                return answer
            assert answer.status_code in (500, 503), answer.text
            await asyncio.sleep(0.05)  # not to keep the machine from loading the model


def test_a_parent_that_is_killed_leaves_no_process(server: Server):
    assert len(server.workers()) == 3
    assert server.running.stop(signal.SIGKILL).status == -9
    eventually(lambda: server.workers() == {})


def test_what_a_worker_cannot_start_for_is_one_line_of_the_parent(tmp_path: Path):
    model = write_byte_gguf(tmp_path / "odd.gguf", {"llama.block_count": 3})  # its header is in order
    words = ("--model", model, "--processes", "3", "--programs-dir", tmp_path / "programs")
    line = run_command("serve", "--port", "0", *words).error_line()
    assert line.startswith(f"{model} has no tensor 'blk.2.")


def test_a_folder_for_sockets_that_cannot_be_made_is_one_line(byte_gguf: Path, tmp_path: Path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    words = ("serve", "--port", "0", "--processes", "2", "--model", byte_gguf)
    assert "set TMPDIR to a folder with a shorter path" in run_command(*words, env={"TMPDIR": str(deep)}).error_line()


class Reader:
    """A run that was started, and its events as they come."""

    def __init__(self) -> None:
        self.run_id = ""
        self.events: list[dict[str, Any]] = []
        self.task: asyncio.Task[None]
        self._has_text = asyncio.Event()

    @classmethod
    async def start(cls, client: httpx.AsyncClient, tasks: asyncio.TaskGroup, source: str) -> "Reader":
        """Returns once the program has shown its first text."""
        reader = cls()
        reader.task = tasks.create_task(reader._read(client, source))
        async with asyncio.timeout(60):
            await reader._has_text.wait()
        return reader

    def codes(self) -> list[str]:
        """Those of its final events: there has to be one."""
        return [event["code"] for event in self.events if event["type"] == "done"]

    async def _read(self, client: httpx.AsyncClient, source: str) -> None:
        async with client.stream("POST", "/v1/runs", json={"source": source}) as response:
            self.run_id = response.headers["x-run-id"]
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    self.events.append(json.loads(line[5:]))
                    if self.events[-1]["type"] == "text":
                        self._has_text.set()


async def first_ended(runs: list[Reader], number: int) -> list[Reader]:
    pending = {run.task for run in runs}
    async with asyncio.timeout(60):
        while len(runs) - len(pending) < number:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    return [run for run in runs if run.task not in pending]


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


async def run_to_end(client: httpx.AsyncClient, source: str) -> httpx.Response:
    return await client.post("/v1/runs", json={"source": source, "stream": False})
