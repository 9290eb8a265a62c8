"""What a program as a model has used is what control counted, on every route, whatever the program says of it."""

import json
from typing import Any

import pytest
from fake_runs import FakeRun, FakeRuns
from live_server import live_server

from loopwright.core.events import RanTokens
from loopwright.core.runs import Parameter

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "Hi"}]
SAID = {"prompt_tokens": 1, "completion_tokens": 1000, "total_tokens": 7}
RAN = RanTokens(prompt_tokens=11, cached_tokens=4, generated_tokens=5)

ROUTES: dict[str, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    "/v1/chat/completions": ({"messages": HI}, (11, 4, 5, 3)),
    "/v1/completions": ({"prompt": "Hi"}, (11, 4, 5, 3)),
    "/v1/responses": ({"input": "Hi"}, (11, 4, 5, 3)),
    "/v1/messages": ({"messages": HI, "max_tokens": 1}, (7, 4, 5, 3)),  # cached ones are not among Anthropic's input
}


def figures(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    """Input, cached, output and thoughts, of any of the three forms."""
    if "prompt_tokens" in usage:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
        return usage["prompt_tokens"], cached, usage["completion_tokens"], thoughts
    details = usage["output_tokens_details"]
    cached = usage.get("cache_read_input_tokens", usage.get("input_tokens_details", {}).get("cached_tokens"))
    thoughts = details.get("reasoning_tokens", details.get("thinking_tokens"))
    return usage["input_tokens"], cached, usage["output_tokens"], thoughts


def usage_of_stream(text: str) -> dict[str, Any]:
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    found = [one.get("usage") or one.get("response", {}).get("usage") for one in events]
    usage: dict[str, Any] = [one for one in found if one][-1]
    return usage


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_programs_usage_is_what_ran(route: str, is_streamed: bool) -> None:
    def answer(run: FakeRun) -> None:
        run.text("Hello")
        run.finish({"usage": {**SAID, "completion_tokens_details": {"reasoning_tokens": 3}}}, RAN)

    asked, expected = ROUTES[route]
    fake = FakeRuns(answer)
    takes_max_tokens = Parameter("max_tokens", "int", is_required=False)  # a completion always has some
    fake.add_program("agent", Parameter("text", "str", is_required=True), takes_max_tokens)
    more = {"stream_options": {"include_usage": True}} if is_streamed and "completions" in route else {}
    async with live_server(fake) as live:
        body = {"model": "program:agent", **asked, "stream": is_streamed, **more}
        told = await live.http.post(route, json=body)
    assert told.status_code == 200, told.text
    assert figures(usage_of_stream(told.text) if is_streamed else told.json()["usage"]) == expected


@pytest.mark.parametrize(
    ("result", "num_thoughts"),
    [
        ("a text", 0),
        ({"usage": "none"}, 0),
        ({"usage": SAID}, 0),
        ({"usage": {"completion_tokens_details": {"reasoning_tokens": 99}}}, 5),
        ({"usage": {"completion_tokens_details": {"reasoning_tokens": -1}}}, 0),
    ],
)
async def test_thoughts_are_as_many_as_a_program_says_and_no_more_than_ran(result: Any, num_thoughts: int) -> None:
    fake = FakeRuns(lambda run: run.finish(result, RAN))
    fake.add_program("agent", Parameter("text", "str", is_required=True))
    async with live_server(fake) as live:
        body = {"model": "program:agent", "messages": HI}
        told = (await live.http.post("/v1/chat/completions", json=body)).json()
    assert figures(told["usage"]) == (11, 4, 5, num_thoughts)
