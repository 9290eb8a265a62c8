"""A server whose model is on several ranks: the same answers over HTTP, and every request ends when a rank dies."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from test_processes import GENERATOR, WAITER, Reader, chat, client_of, well_again

from command_rig import Server, eventually, serving

pytestmark = pytest.mark.wasm

MEMBER = "loopwright.engine.rank_member"
KILLED = "of the model was ended by SIGKILL"


def ranks_of(parent: int) -> list[int]:
    """The living ranks that a process has started, in their order."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            state, started_by = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended meanwhile
        if MEMBER in words and state != "Z" and int(started_by) == parent:
            found.append((words[-2], int(folder.name)))
    return [process for _, process in sorted(found)]


@pytest.fixture
def on_three(tmp_path: Path) -> Iterator[Server]:
    """SmolLM2 on three ranks, all else in one process."""
    with serving(tmp_path, "--processes", "1", "--tensor-parallel", "3") as server:
        yield server


@pytest.mark.model
def test_a_server_on_three_ranks_answers_until_one_dies_and_then_says_so(on_three: Server):
    server = on_three
    ranks = ranks_of(server.running.process.pid)
    assert len(ranks) == 2
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
        options: Any = {"model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 16}
        answer = client.chat.completions.create(messages=messages, **options).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("The capital of France is Paris.", "stop")

    async def scenario() -> None:
        async with client_of(server) as client, asyncio.TaskGroup() as tasks:
            runs = [await Reader.start(client, tasks, GENERATOR) for _ in range(3)]
            idle = await Reader.start(client, tasks, WAITER)
            os.kill(ranks[0], signal.SIGKILL)
            async with asyncio.timeout(60):
                await asyncio.gather(*(run.task for run in runs))
            for run in runs:
                assert run.codes() == ["internal"], "one final event"
                assert KILLED in run.events[-1]["error"]["message"]
            for path in ("/health", "/ready"):
                refused = await client.get(path)
                assert refused.status_code == 503
                assert KILLED in refused.json()["error"]["message"]
            assert (
                await client.post("/v1/chat/completions", json={"messages": messages, **options})
            ).status_code == 503
            assert (await client.post(f"/v1/runs/{idle.run_id}/cancel")).status_code == 202

    asyncio.run(scenario())
    assert "Traceback" not in server.running.err
    assert server.running.stop(signal.SIGTERM).status in (0, -signal.SIGTERM)
    assert [one for one in ranks if Path(f"/proc/{one}").exists()] == []


def test_a_model_worker_that_lost_a_rank_comes_back_with_new_ones_and_takes_them_with_it(
    byte_gguf: Path, tmp_path: Path
):
    with serving(tmp_path, "--model", byte_gguf, "--processes", "2", "--tensor-parallel", "2") as server:
        worker = server.workers()["model"]
        (rank,) = ranks_of(worker)

        async def scenario() -> None:
            async with client_of(server) as client:
                before = await chat(client)
                assert before.status_code == 200
                os.kill(rank, signal.SIGKILL)
                eventually(lambda: server.workers().get("model", worker) != worker)
                again = await well_again(client)
                assert again.json()["choices"] == before.json()["choices"]

        asyncio.run(scenario())
        worker = server.workers()["model"]
        (rank,) = ranks_of(worker)
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{rank}").exists())
        assert server.running.stop(signal.SIGKILL).status == -9
