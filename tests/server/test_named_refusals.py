"""What nobody knows, of a query, a body or a name, is refused by its name, with the name that may have been meant."""

from typing import Any

import httpx
import pytest
from fake_runs import FakeRuns
from live_server import live_server

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "Hi"}]


async def answered(method: str, path: str, body: Any = None) -> httpx.Response:
    fake = FakeRuns()
    fake.add_program("agent")
    async with live_server(fake) as live:
        answer = await live.http.request(method, path, json=body)
    assert not fake.by_id
    return answer


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/v1/models?limit=1", "limit: is no parameter of this route's query; it takes none"),
        ("GET", "/v1/models/tiny?x=1", "x: is no parameter"),
        ("GET", "/health?verbose=1", "verbose: is no parameter"),
        ("GET", "/v1/runs?detach=true", "detach: is no parameter"),
        ("GET", "/v1/programs?name=agent", "name: is no parameter"),
        ("GET", "/v1/runs/none/events?aftr=1", "aftr: is no parameter of this route's query; did you mean after?"),
        ("DELETE", "/v1/responses/none?force=1", "force: is no parameter"),
        ("GET", "/v1/responses/none?include=bogus", "include: 'bogus' is none of message.output_text.logprobs, "),
        ("GET", "/v1/responses/none/input_items?include[]=bogus", "include[]: 'bogus' is none of "),
        ("GET", "/metrics?" + "x" * 500 + "=1", "x" * 50 + ": is no parameter"),
    ],
)
async def test_a_query_that_no_route_knows_is_refused(method: str, path: str, said: str) -> None:
    answer = await answered(method, path)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(said)
    assert answer.json()["error"]["param"] == said.partition(":")[0]


async def test_a_query_that_is_known_is_read() -> None:
    included = "include=message.output_text.logprobs&include[]=reasoning.encrypted_content"
    assert (await answered("GET", f"/v1/responses/none?{included}")).status_code == 404
    assert (await answered("GET", "/v1/models?")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", {"messages": HI, "temprature": 1}, "is not a known field; did you mean temperature?"),
        ("/v1/chat/completions", {"messages": HI, "zzz": 1}, "zzz: is not a known field"),
        ("/v1/responses", {"input": "x", "max_tokens": 1}, "did you mean max_output_tokens"),
        ("/v1/messages", {"messages": HI, "max_tokens": 1, "stop_sequence": []}, "did you mean stop_sequences?"),
        ("/v1/responses", {"input": "x", "max_tool_calls": -1}, "max_tool_calls: Expected `int` >= 1"),
        (
            "/v1/chat/completions",
            {"messages": HI, "stream_options": {"include_usag": True}},
            "did you mean include_usage or",
        ),
        (
            "/v1/chat/completions",
            {"messages": HI, "tools": [{"functon": {}}]},
            "tools[0].functon: is not a known field; did you mean function?",
        ),
    ],
)
async def test_a_field_that_nobody_knows_has_the_nearest_one_for_a_hint(path: str, body: Any, said: str) -> None:
    answer = await answered("POST", path, {"model": "tiny", **body})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_a_field_that_is_missing_has_no_hint_at_itself() -> None:
    answer = await answered("POST", "/v1/chat/completions", {"model": "tiny", "messages": [{"content": "Hi"}]})
    message = answer.json()["error"]["message"]
    assert "is required" in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": HI, "max_tokens": 1}),
    ],
)
async def test_a_model_that_is_not_there_has_the_nearest_ones_for_a_hint(path: str, more: Any) -> None:
    for name, near in (("program:agnt", "did you mean program:agent? "), ("tinny", "did you mean tiny? "), ("q", "")):
        answer = await answered("POST", path, {"model": name, **more})
        assert answer.status_code == 404
        said = f"model: the model '{name}' does not exist; {near}GET /v1/models lists those that do"
        assert answer.json()["error"]["message"] == said
    answer = await answered("POST", path, {"model": "m" * 100_000, **more})
    assert len(answer.content) < 500


async def test_a_model_is_looked_up_with_the_same_hint() -> None:
    assert "did you mean program:agent?" in (await answered("GET", "/v1/models/program:agents")).text
