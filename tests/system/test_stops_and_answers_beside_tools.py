"""Stop strings and forms of the answer beside tools, on all three forms of a request: a stop counts in what the client
sees as text, never in a call; a turn is calls, or an answer in its form; and a stream comes to the whole answer."""

import json
from typing import Any

import pytest
from http_rig import Served
from test_tool_families import MARKS, SAYS, marked
from tools_rig import ASK, TOOLS, function, hermes, saying

from system_rig import CHATML, in_loop

CITY = "Zürich STOP }"
CALL = hermes("weather", city=CITY, days=2)
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"], "additionalProperties": False,
}  # fmt: skip
SKY = '{"sky": "<tool_call> STOP [noon()]"}'
FLAT = [{"type": "function", **one["function"]} for one in TOOLS]
INPUT_SCHEMAS = [
    {"name": one["function"]["name"], "input_schema": one["function"]["parameters"]} for one in TOOLS
]  # fmt: skip
Told = tuple[str, list[tuple[str, Any]], str]
"""The text, the calls, and why it ended, in a chat's words."""


def body_of(form: str, *, stop: list[str] | None = None, schema: Any = None, choice: str = "auto", **more: Any) -> Any:
    """A request of that form that asks for the same as the other two."""
    body: dict[str, Any] = {"model": "byte", "temperature": 0, **more}
    if form == "chat":
        body |= {"messages": ASK, "tools": TOOLS, "tool_choice": choice, "stop": stop}
        if schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    elif form == "responses":
        body |= {"input": ASK, "tools": FLAT, "tool_choice": choice, "stop": stop, "store": False}
        if schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    else:
        kind = {"auto": "auto", "required": "any", "none": "none"}[choice]
        body |= {"messages": ASK, "tools": INPUT_SCHEMAS, "tool_choice": {"type": kind}, "max_tokens": 500}
        body["stop_sequences"] = stop
        if schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return {name: value for name, value in body.items() if value is not None}


PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def told(form: str, answer: Any) -> Told:
    """What a whole answer says."""
    if form == "chat":
        choice = answer["choices"][0]
        calls = [one["function"] for one in choice["message"].get("tool_calls") or ()]
        return (
            choice["message"]["content"] or "",
            [(one["name"], one["arguments"]) for one in calls],
            choice["finish_reason"],
        )
    if form == "responses":
        texts = [one["content"][0]["text"] for one in answer["output"] if one["type"] == "message"]
        found = [(one["name"], one["arguments"]) for one in answer["output"] if one["type"] == "function_call"]
        return "".join(texts), found, "tool_calls" if found else "stop"
    texts = [one["text"] for one in answer["content"] if one["type"] == "text"]
    found = [(one["name"], one["input"]) for one in answer["content"] if one["type"] == "tool_use"]
    reasons = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
    return (
        "".join(texts),
        [(name, json.dumps(one, ensure_ascii=False)) for name, one in found],
        reasons[answer["stop_reason"]],
    )


async def ask(client: Served, form: str, body: Any) -> Told:
    """The whole answer, once it is seen that the stream comes to the same."""
    answer = await client.http.post(PATHS[form], json=body)
    assert answer.status_code == 200, answer.text
    whole = told(form, answer.json())
    stream = (await client.http.post(PATHS[form], json={**body, "stream": True})).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    if form == "chat":
        deltas = [one["choices"][0]["delta"] for one in events]
        parts = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
        text = "".join(delta.get("content") or "" for delta in deltas)
    elif form == "responses":
        assert told(form, events[-1]["response"]) == whole
        text = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
        parts = [
            {"arguments": one["delta"]} for one in events if one["type"] == "response.function_call_arguments.delta"
        ]
    else:
        inner = [one["delta"] for one in events if one["type"] == "content_block_delta"]
        text = "".join(one.get("text", "") for one in inner)
        parts = [{"arguments": one.get("partial_json", "")} for one in inner]
    assert text == whole[0]
    arguments = "".join(part["arguments"] for part in parts)
    assert arguments == "".join(written for _, written in whole[1])
    return whole


WEATHER = ("weather", json.dumps({"city": CITY, "days": 2}, ensure_ascii=False))


@pytest.mark.parametrize("form", PATHS)
@pytest.mark.parametrize(
    ("says", "stop", "text", "calls", "reason"),
    [
        (f"I look.{CALL}", ["STOP", "}", '"', "city"], "I look.", [WEATHER], "tool_calls"),
        (f"I look. STOP {CALL}", ["STOP"], "I look. ", [], "stop"),
        (f"{CALL} done STOP", ["STOP"], " done ", [WEATHER], "tool_calls"),
        (f"{CALL}\n{hermes('noon')}", ["\n"], "", [WEATHER, ("noon", "{}")], "tool_calls"),
        (f"I{CALL}\n{hermes('noon')}", ["\n"], "I", [WEATHER, ("noon", "{}")], "tool_calls"),
        (f"I\n{CALL}", ["\n"], "I", [], "stop"),
        (f"1 < 2 {CALL}", ["<"], "1 ", [], "stop"),
        (f"12{CALL}", ["2<", "<tool"], "12", [WEATHER], "tool_calls"),
        ("I <", ["<"], "I ", [], "stop"),
        (f"ST{CALL}OP", ["STOP"], "STOP", [WEATHER], "tool_calls"),
    ],
)
def test_a_stop_counts_in_text_and_never_in_a_call(
    form: str, says: str, stop: list[str], text: str, calls: Any, reason: str
) -> None:
    async def scenario() -> None:
        async with saying(says) as client:
            assert await ask(client, form, body_of(form, stop=stop)) == (text, calls, reason)
            if form == "messages" and reason == "stop":
                whole = (await client.http.post(PATHS[form], json=body_of(form, stop=stop))).json()
                assert (whole["stop_reason"], whole["stop_sequence"] in stop) == ("stop_sequence", True)

    in_loop(scenario)


@pytest.mark.parametrize("family", SAYS)
def test_no_family_has_its_calls_cut_by_a_stop(family: str) -> None:
    async def scenario() -> None:
        async with saying(SAYS[family], template=marked(family)) as client:
            plain = await ask(client, "chat", body_of("chat"))
            assert len(plain[1]) == 2
            assert await ask(client, "chat", body_of("chat", stop=["Zü", "days", "}", ")", '"', "noon"])) == plain

    in_loop(scenario)


@pytest.mark.parametrize("form", PATHS)
@pytest.mark.parametrize(
    ("says", "choice", "text", "calls", "reason"),
    [
        (SKY, "auto", SKY, [], "stop"),
        (CALL, "auto", "", [WEATHER], "tool_calls"),
        (f"{CALL}\n{hermes('noon')}", "auto", "", [WEATHER, ("noon", "{}")], "tool_calls"),
        (SKY, "none", SKY, [], "stop"),
        (CALL, "required", "", [WEATHER], "tool_calls"),
    ],
)
def test_a_turn_is_calls_or_an_answer_in_its_form(
    form: str, says: str, choice: str, text: str, calls: Any, reason: str
) -> None:
    async def scenario() -> None:
        async with saying(says) as client:
            body = body_of(form, schema=SCHEMA, choice=choice)
            assert await ask(client, form, body) == (text, calls, reason)

    in_loop(scenario)


@pytest.mark.parametrize("family", MARKS)
def test_every_family_takes_a_form_of_the_answer_beside_tools_or_says_why_not(family: str) -> None:
    calls = SAYS[family]
    if family == "gemma":
        calls = f"```json\n{calls.replace('; ', chr(10))}\n```"

    async def scenario() -> None:
        for says, is_answer in (("Rain." if family == "llama3_json" else SKY, True), (calls, False)):
            async with saying(says, template=marked(family)) as client:
                body = body_of("chat", schema=SCHEMA)
                if family == "llama3_json":
                    error = (await client.http.post(PATHS["chat"], json=body)).json()["error"]
                    assert error["param"] == "response_format.json_schema.schema"
                    assert "could begin with '{', and so do the calls of this model" in error["message"]
                    body = body_of("chat", guided_choice=["Rain.", "Sun."])
                text, found, reason = await ask(client, "chat", body)
                assert (text, len(found), reason) == (says if is_answer else "", 0 if is_answer else 2,
                                                      "stop" if is_answer else "tool_calls")  # fmt: skip

    in_loop(scenario)


THINKING = CHATML + "{% if false %}<think></think>{% endif %}"


def test_of_a_model_that_thinks_the_form_and_the_stop_are_of_what_comes_behind() -> None:
    async def scenario() -> None:
        for says, wanted in ((SKY, (SKY, [], "stop")), (CALL, ("", [WEATHER], "tool_calls"))):
            async with saying(f"<think>\nSTOP {{</think>\n\n{says}", template=THINKING) as client:
                assert await ask(client, "chat", body_of("chat", schema=SCHEMA)) == wanted
                assert await ask(client, "chat", body_of("chat", schema=SCHEMA, stop=["{</"])) == wanted

    in_loop(scenario)


@pytest.mark.parametrize("field", ["response_format", "guided_json"])
def test_a_form_that_cannot_be_held_is_refused_beside_tools_too(field: str) -> None:
    odd = {"type": "object", "properties": {"a": {"contains": {}}}}
    formats = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": odd}}, "guided_json": odd,
    }  # fmt: skip
    pointers = {"response_format": "response_format.json_schema.schema", "guided_json": "guided_json"}

    async def scenario() -> None:
        async with saying("") as client:
            for choice in ("auto", "required", "none"):
                body = {**body_of("chat", choice=choice), field: formats[field]}
                error = (await client.http.post(PATHS["chat"], json=body)).json()["error"]
                assert error["param"] == f"{pointers[field]}#/properties/a/contains"

    in_loop(scenario)


def test_a_strict_tool_and_a_form_are_both_held_with_a_random_draw() -> None:
    rate = function("rate", True, stars={"type": "integer", "minimum": 1, "maximum": 5})

    async def scenario() -> None:
        async with saying('{"sky": "a"}') as client:
            for seed in range(6):
                body = body_of("chat", schema=SCHEMA, seed=seed, max_tokens=400) | {"tools": [rate], "temperature": 1.9}
                body["logit_bias"] = {str(ord("<")): 100.0 if seed % 2 else -100.0}
                answer = (await client.http.post(PATHS["chat"], json=body)).json()["choices"][0]
                if answer["finish_reason"] == "tool_calls":
                    for one in answer["message"]["tool_calls"]:
                        assert 1 <= json.loads(one["function"]["arguments"])["stars"] <= 5
                elif answer["finish_reason"] == "stop":
                    assert json.loads(answer["message"]["content"]).keys() == {"sky"}

    in_loop(scenario)
