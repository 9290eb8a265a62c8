"""Deploying, starting, following, listing and cancelling over HTTP."""

import json
import logging
from typing import Any

import pytest
from eventually import eventually
from fake_runs import FakeRun, FakeRuns
from live_server import live_server

from loopwright.core.errors import (
    ContextTooLong,
    LimitExceeded,
    LoopwrightError,
    NotFound,
    OutOfPages,
    PermissionDenied,
    ProgramError,
    ProgramRejected,
)
from loopwright.core.runs import RunSpec

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def script(run: FakeRun) -> None:
    run.text("a", "b")
    run.log("a line")
    run.emit({"n": 10**30})
    run.finish({"answer": 42})


def read_sse(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each checked to have its type as name and its number as id."""
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            event = json.loads(lines["data"])
            assert (lines["event"], lines["id"]) == (event["type"], str(event["seq"]))
            events.append(event)
    return events


async def test_a_deployed_program_is_listed_and_runs_as_events() -> None:
    fake = FakeRuns(script)
    async with live_server(fake) as live:
        deployed = await live.http.post("/v1/programs", json={"name": "agent", "source": "s", "filename": "agent.py"})
        assert deployed.status_code == 200
        assert deployed.json()["parameters"] == [{"name": "n", "type": "int", "is_required": True}]
        assert (await live.http.get("/v1/programs")).json() == {"programs": [deployed.json()]}
        answer = await live.http.post("/v1/programs/agent/runs", json={"arguments": {"n": 10**30}, "seed": 5})
    assert answer.headers["x-run-id"] == "run-0"
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read_sse(answer.text)
    assert [event["type"] for event in events] == ["started", "text", "text", "log", "emit", "done"]
    assert [event["seq"] for event in events] == list(range(6))
    assert events[0]["run"] == "run-0"
    assert events[4]["value"] == {"n": 10**30}
    assert events[5]["result"] == {"answer": 42}
    assert fake.started[0].spec == RunSpec(program="agent", arguments={"n": 10**30}, seed=5)


async def test_a_program_is_removed_and_both_are_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "loopwright.server")
    async with live_server(FakeRuns()) as live:
        await live.http.post("/v1/programs", json={"name": "agent", "source": "s"})
        removed = await live.http.delete("/v1/programs/agent")
        assert (removed.status_code, removed.json()) == (200, {"name": "agent", "deleted": True})
        assert (await live.http.get("/v1/programs")).json() == {"programs": []}
        again = await live.http.delete("/v1/programs/agent")
        assert (again.status_code, again.json()["error"]["param"]) == (404, "program")
    told = [(one.message, one.told["program"]) for one in caplog.records if hasattr(one, "told")]  # type: ignore[attr-defined]
    assert told == [("a program was deployed", "agent"), ("a program was removed", "agent")]


@pytest.mark.parametrize(("method", "end"), [("POST", "/runs"), ("DELETE", "")])
async def test_a_name_that_is_not_deployed_is_answered_with_the_nearest(method: str, end: str) -> None:
    async with live_server(FakeRuns()) as live:
        await live.http.post("/v1/programs", json={"name": "say-hello", "source": "s"})
        answer = await live.http.request(method, f"/v1/programs/say_hello{end}", json={})
    assert answer.status_code == 404
    expected = "no program 'say_hello' is deployed; did you mean say-hello?"
    assert answer.json()["error"]["message"] == expected


async def test_a_source_runs_without_being_deployed_and_only_in_the_sandbox() -> None:
    fake = FakeRuns(script)
    async with live_server(fake) as live:
        body = {"source": "x", "filename": "a.py", "arguments": {"n": 1}}
        answer = await live.http.post("/v1/runs", json=body)
        assert read_sse(answer.text)[-1]["code"] == "ok"
        refused = await live.http.post("/v1/runs", json={**body, "sandbox": "native"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "sandbox")
    assert [run.spec for run in fake.started] == [RunSpec(source="x", filename="a.py", arguments={"n": 1})]


@pytest.mark.parametrize(
    ("body", "accept"), [({"stream": False}, "*/*"), ({}, "application/json"), ({"stream": False}, "text/event-stream")]
)
async def test_the_outcome_can_be_waited_for(body: dict[str, Any], accept: str) -> None:
    async with live_server(FakeRuns(script)) as live:
        answer = await live.http.post("/v1/runs", json={"source": "x", **body}, headers={"accept": accept})
    assert answer.json() == {"run": "run-0", "code": "ok", "text": "ab", "result": {"answer": 42}}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PermissionDenied("http to evil.example is not listed", hint="list it"), 422),
        (NotFound("there is no page 3", field="pages"), 422),
        (ProgramError("ZeroDivisionError: division by zero"), 422),
        (LimitExceeded("too many pages"), 422),
        (ContextTooLong("5000 tokens; the model attends to 4096"), 400),
        (OutOfPages("no page is left"), 503),
    ],
)
async def test_a_failed_outcome_has_the_error_and_a_status_that_blames_the_program(
    error: LoopwrightError, status: int
) -> None:
    fake = FakeRuns(lambda run: run.fail(error))
    async with live_server(fake) as live:
        answer = await live.http.post("/v1/runs", json={"source": "x", "stream": False})
    assert answer.status_code == status
    assert (answer.json()["code"], answer.json()["error"]["type"]) == (error.code, type(error).__name__)


async def test_a_program_that_is_none_is_rejected_before_any_event() -> None:
    fake = FakeRuns()
    fake.refuse_start = ProgramRejected("program.py, line 3: invalid syntax", hint="fix it")
    async with live_server(fake) as live:
        answer = await live.http.post("/v1/runs", json={"source": "x"})
        assert answer.status_code == 422
        assert answer.json()["error"]["message"] == "program.py, line 3: invalid syntax; fix it"
        missing = await live.http.post("/v1/programs/none/runs", json={})
        assert missing.status_code == 404


async def test_a_built_in_program_is_no_deployed_one() -> None:
    async with live_server(FakeRuns()) as live:
        assert (await live.http.post("/v1/programs/chat/runs", json={})).status_code == 404


async def test_runs_are_listed_followed_and_cancelled() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    fake.add_program("agent")
    async with live_server(fake) as live:
        async with live.http.stream("POST", "/v1/programs/agent/runs", json={}) as answer:
            run_id = answer.headers["x-run-id"]
            (listed,) = (await live.http.get("/v1/runs")).json()["runs"]
            assert (listed["run"], listed["state"], listed["program"]) == (run_id, "running", "agent")
            async with live.http.stream("GET", f"/v1/runs/{run_id}/events?after=1") as following:
                assert following.status_code == 200  # at once, though there is no event yet
                cancelled = await live.http.post(f"/v1/runs/{run_id}/cancel")
                assert (cancelled.status_code, cancelled.json()) == (202, {"run": run_id})
                followed = read_sse((await following.aread()).decode())
            whole = read_sse((await answer.aread()).decode())
        assert [(event["type"], event.get("code")) for event in followed] == [("done", "cancelled")]
        assert followed == whole[2:]
        again = await live.http.get(f"/v1/runs/{run_id}/events")
        assert read_sse(again.text) == whole
        assert (await live.http.delete(f"/v1/runs/{run_id}")).status_code == 202


async def test_a_detached_run_can_be_left_and_found_again() -> None:
    fake = FakeRuns(lambda run: run.text("a"))
    async with live_server(fake) as live:
        async with live.http.stream("POST", "/v1/runs?detach=true", json={"source": "x"}) as answer:
            run_id = answer.headers["x-run-id"]
        await eventually(lambda: fake.num_reading == 0)
        fake.started[0].finish()
        again = await live.http.get(f"/v1/runs/{run_id}/events?after=1")
        assert [event["type"] for event in read_sse(again.text)] == ["done"]


@pytest.mark.parametrize("after", ["2", "99", "9" * 30])
async def test_who_follows_a_run_that_is_over_from_its_end_does_not_wait(after: str) -> None:
    fake = FakeRuns(lambda run: (run.text("a"), run.finish()))
    async with live_server(fake) as live:
        run_id = (await live.http.post("/v1/runs?detach=true", json={"source": "x"})).headers["x-run-id"]
        again = await live.http.get(f"/v1/runs/{run_id}/events?after={after}")
        assert [event["type"] for event in read_sse(again.text)] == ["done"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/runs/none/events"), ("POST", "/v1/runs/none/cancel"), ("DELETE", "/v1/runs/none")],
)
async def test_a_run_that_is_none_is_not_found(method: str, path: str) -> None:
    async with live_server(FakeRuns()) as live:
        assert (await live.http.request(method, path)).status_code == 404


async def test_where_to_follow_from_must_be_a_number() -> None:
    async with live_server(FakeRuns()) as live:
        answer = await live.http.get("/v1/runs/none/events?after=x")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
