"""Requests as clients really send them and nobody thinks of, over HTTP: each is answered, or refused by the name of
what is wrong with it."""

import json
from typing import Any

import pytest
from tools_rig import ASK, NOON, TOOLS, function, saying

from system_rig import in_loop

CALL: Any = {"id": "a", "type": "function", "function": {"name": "noon", "arguments": "{}"}}
CALLED: Any = [*ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT: Any = {"role": "tool", "tool_call_id": "a", "content": "12"}
ITEM: Any = {"type": "function_call", "call_id": "a", "name": "noon", "arguments": "{}"}
USE: Any = {"type": "tool_use", "id": "a", "name": "noon", "input": {}}
NESTED: Any = {
    "anyOf": [
        {"type": "object", "properties": {"k": {"const": "a"}, "x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
         "required": ["k", "x"], "additionalProperties": False},
        {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"], "additionalProperties": False},
    ]
}  # fmt: skip
NULLS = dict.fromkeys(
    ("temperature", "top_p", "n", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens", "tools",
     "tool_choice", "functions", "function_call", "logit_bias", "user", "seed", "response_format", "logprobs",
     "top_logprobs", "parallel_tool_calls", "metadata", "store", "reasoning_effort", "modalities", "audio",
     "prediction", "service_tier", "verbosity", "continue_final_message", "add_generation_prompt")
)  # fmt: skip
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OK = ""
"""In place of the name of what is wrong."""

ODD: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"tools": [function("f", True, x=NESTED)]}, OK),
    (CHAT, {"tools": []}, OK),
    (CHAT, {"tools": [], "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"parallel_tool_calls": False}, OK),
    (CHAT, {"tools": TOOLS, "logprobs": True, "top_logprobs": 2}, OK),
    (CHAT, {"tools": [NOON, NOON]}, "tools[1].function.name"),
    (CHAT, {"messages": [RESULT]}, "messages[0].tool_call_id"),
    (CHAT, {"messages": [*CALLED, RESULT, RESULT]}, OK),
    (CHAT, {"messages": [*ASK, {**CALLED[-1], "tool_calls": [CALL, CALL]}]}, "messages[1].tool_calls[1].id"),
    (CHAT, {"messages": [*ASK, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *ASK]}, OK),
    (CHAT, {"messages": [*ASK, {"role": "assistant", "content": "a", "reasoning_content": "Hm."}, *ASK]}, OK),
    (CHAT, {"messages": [{**ASK[0], "name": None, "tool_calls": None, "tool_call_id": None}], **NULLS}, OK),
    (CHAT, {"n": 129}, "n"),
    (CHAT, {"stop": ["a", "b", "c", "d", "e"]}, OK),
    (CHAT, {"stop": ""}, "stop"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"seed": 2**64}, "seed"),
    (CHAT, {"temperature": 1e300}, "temperature"),
    (CHAT, {"max_tokens": 10**400}, OK),
    (CHAT, {"verbosity": "medium"}, OK),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
     "response_format.json_schema.name"),
    (RESPONSES, {"input": ""}, OK),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "q", "output": ""}]}, "input[0].call_id"),
    (RESPONSES, {"input": [*ASK, ITEM, ITEM]}, "input[2].call_id"),
    (RESPONSES, {"input": "x", "text": {"verbosity": "medium"}}, OK),
    (RESPONSES, {"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
    (MESSAGES, {"messages": [*ASK, *ASK]}, OK),
    (MESSAGES, {"messages": [*ASK, {"role": "assistant", "content": [USE, USE]}, *ASK]}, "messages[1].content[1].id"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "q"}]}]},
     "messages[0].content[0].tool_use_id"),
    (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (MESSAGES, {"max_tokens": 0}, "max_tokens"),
]  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK}, RESPONSES: {"store": False}, MESSAGES: {"messages": ASK, "max_tokens": 5},
}  # fmt: skip
RAW = [
    ('{"model": "byte", "messages": [{"role": "user", "content": "x"}]} x', "trailing characters"),
    ('{"model": "byte", "messages": [{"role": "user", "content": "\\ud800"}]}', "is not JSON"),
    ('{"model": "byte", "temperature": NaN}', "is not JSON"),
    ('{"model": "byte", "model": "other", "messages": [{"role": "user", "content": "x"}]}', "'other' does not exist"),
    ('{"model": " byte ", "messages": [{"role": "user", "content": "x"}]}', "' byte ' does not exist"),
    ("[]", "Expected `object`"),
    ("", "is not JSON"),
]


def test_odd_requests_are_answered_or_refused_by_the_name_of_what_is_wrong() -> None:
    async def scenario() -> None:
        async with saying("ok") as client:
            for path, more, named in ODD:
                body = json.dumps({"model": "byte", **BODIES[path], **more})  # httpx would refuse some
                answer = await client.http.post(path, content=body, headers={"content-type": "application/json"})
                told = answer.json()
                assert answer.status_code == (400 if named else 200), (path, more, told)
                if named and path != MESSAGES:
                    assert told["error"]["param"] == named
                elif named:
                    assert told["error"]["message"].startswith(f"{named}: ")

    in_loop(scenario)


@pytest.mark.parametrize(("body", "message"), RAW)
def test_bodies_that_are_no_request_are_refused(body: str, message: str) -> None:
    async def scenario() -> None:
        async with saying("ok") as client:
            answer = await client.http.post(CHAT, content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (400, 404)
            assert message in answer.json()["error"]["message"]

    in_loop(scenario)
