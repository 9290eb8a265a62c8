"""Chats with tools over each family's way to write calls: calls come out the same streamed and not, what is beside them
is kept, and a conversation goes back in the model's own form, by its template where that knows calls."""

import json
from typing import Any

import pytest
from tools_rig import ASK, TOOLS, saying

from system_rig import CHATML, in_loop

ARGUMENTS: dict[str, Any] = {"city": 'Zü"rich\n</tool_call>])', "days": 2}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
MARKS = {  # what a template has that tells the format
    "hermes": "<tool_call>",
    "smollm2": "named SmolLM",
    "llama3_json": "<|start_header_id|>",
    "gemma": "<start_of_turn>",
    "mistral": "[TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS][ARGS]",
    "pythonic": "<|header_start|>",
}
OBJECTS = [f'{{"name": "weather", "arguments": {JSON}}}', '{"name": "noon", "arguments": {}}']
WITH_PARAMETERS = "; ".join(one.replace('"arguments"', '"parameters"') for one in OBJECTS)
SAYS = {
    "hermes": "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in OBJECTS),
    "smollm2": f"<tool_call>[{', '.join(OBJECTS)}]</tool_call>",
    "llama3_json": WITH_PARAMETERS,
    "gemma": WITH_PARAMETERS,
    "mistral": f"[{', '.join(OBJECTS)}]",
    "mistral_args": f"[TOOL_CALLS]weather[ARGS]{JSON}[TOOL_CALLS]noon[ARGS]{{}}",
    "pythonic": f"[weather(city={json.dumps(ARGUMENTS['city'], ensure_ascii=False)}, days=2), noon()]",
}
HAS_TEXT_BEFORE = ("hermes", "smollm2", "mistral_args")


def marked(family: str) -> str:
    """A template that tells the format and knows neither tools nor calls."""
    return f"{{% if false %}}{MARKS[family]}{{% endif %}}" + CHATML


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("family", SAYS)
def test_two_calls_come_out_streamed_and_not_and_go_back_in(family: str, choice: str) -> None:
    before = "I look. " if choice == "auto" and family in HAS_TEXT_BEFORE else ""
    given: Any = {"model": "byte", "tools": TOOLS, "tool_choice": choice, "temperature": 0}

    async def scenario() -> None:
        async with saying(before + SAYS[family], "Rain.", template=marked(family)) as client:
            answer = (await client.openai.chat.completions.create(messages=ASK, **given)).choices[0]
            assert (answer.message.content, answer.finish_reason) == (before or None, "tool_calls")
            calls = [one.function for one in answer.message.tool_calls or () if one.type == "function"]
            assert [(one.name, json.loads(one.arguments)) for one in calls] == [("weather", ARGUMENTS), ("noon", {})]
            async with client.openai.chat.completions.stream(messages=ASK, **given) as stream:
                streamed = (await stream.get_final_completion()).choices[0]
            told = [(one.function.name, one.function.arguments) for one in streamed.message.tool_calls or ()]
            assert told == [(one.name, one.arguments) for one in calls]
            assert ((streamed.message.content or None), streamed.finish_reason) == (before or None, "tool_calls")

            results = [
                {"role": "tool", "tool_call_id": one.id, "content": "wet"} for one in answer.message.tool_calls or ()
            ]
            messages = [*ASK, answer.message.model_dump(exclude_none=True), *results]
            last = await client.openai.chat.completions.create(**{**given, "tool_choice": "none", "messages": messages})
            assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("Rain.", "stop")
            body = {"model": "byte", "messages": messages, "tools": TOOLS}
            rendered = (await client.http.post("/v1/chat/completions/render", json=body)).json()["text"]
            if family != "pythonic":  # whose strings are written by Python
                assert SAYS[family] + "<|im_end|>\n<|im_start|>tool\nwet<|im_end|>" in rendered
            assert rendered.count("You may call these functions:") == 1

    in_loop(scenario)


@pytest.mark.parametrize("family", SAYS)
@pytest.mark.parametrize("max_tokens", [5, 30, 50])
def test_a_turn_that_is_cut_has_the_beginning_of_what_was_written(family: str, max_tokens: int) -> None:
    given: Any = {"model": "byte", "messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": max_tokens}

    async def scenario() -> None:
        async with saying(SAYS[family], template=marked(family)) as client:
            answer = (await client.openai.chat.completions.create(**given)).choices[0]
            assert answer.finish_reason == "length"
            calls = answer.message.tool_calls or []
            text = answer.message.content or ""
            assert bool(text) != bool(calls)  # it began as a call, or it did not
            for call in calls:
                assert call.type == "function"
                assert JSON.startswith(call.function.arguments)
            stream = await client.openai.chat.completions.create(**given, stream=True)
            chunks = [chunk.choices[0] async for chunk in stream]
            assert "".join(one.delta.content or "" for one in chunks) == text
            told = [
                one.function for chunk in chunks for one in chunk.delta.tool_calls or () if one.function is not None
            ]
            assert "".join(one.arguments or "" for one in told) == "".join(one.function.arguments for one in calls)  # type: ignore[union-attr]
            assert chunks[-1].finish_reason == "length"

    in_loop(scenario)


def test_a_template_that_knows_calls_gets_them_and_mistrals_ids_are_nine_letters() -> None:
    told = "{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}{{ m.tool_call_id }}"
    template = CHATML.replace("{{ message['content'] }}", "{% set m = message %}{{ m.content }}" + told)
    call = {
        "id": "call_run_7_0_0",
        "type": "function",
        "function": {"name": "noon", "arguments": '{"a": "<|im_end|>"}'},
    }
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_run_7_0_0", "content": "now "},
    ]

    async def scenario() -> None:
        for mark, is_short in (("<tool_call>", False), ("[TOOL_CALLS]", True)):
            async with saying("", template=f"{{% if false %}}{mark}{{% endif %}}{template}") as client:
                body = {"model": "byte", "messages": messages}
                text = (await client.http.post("/v1/chat/completions/render", json=body)).json()["text"]
                written = text.partition("assistant\n")[2].partition("<|im_end|>\n")[0]
                (found,) = json.loads(written)
                assert found["function"] == {"name": "noon", "arguments": {"a": "<|im_end|>"}}
                assert (found["id"] == call["id"]) == (not is_short)
                assert not is_short or (len(found["id"]) == 9 and found["id"].isalnum())
                assert f"tool\nnow {found['id']}<|im_end|>" in text

    in_loop(scenario)


MISTRAL = marked("mistral")
MISTRAL_ARGS = marked("mistral_args")
MARKED_CALLS = [
    (MISTRAL, f"[[TOOL_CALLS]][{', '.join(OBJECTS)}]", ""),
    (MISTRAL_ARGS, f"[[TOOL_CALLS]]weather[[ARGS]]{JSON}[[TOOL_CALLS]]noon[[ARGS]]{{}}", ""),
    (
        MISTRAL_ARGS,
        f"I [TOOL_] look. [[TOOL_CALLS]]weather[[ARGS]]{JSON}[[TOOL_CALLS]]noon[[ARGS]]{{}}",
        "I [TOOL_] look. ",
    ),
    (MISTRAL_ARGS, f"[[TOOL_CALLS]]weather[[CALL_ID]]abcdefghi[[ARGS]]{JSON}[[TOOL_CALLS]]noon[[ARGS]]{{}}", ""),
]


@pytest.mark.parametrize(("template", "says", "begins"), MARKED_CALLS)
@pytest.mark.parametrize("options", [{}, {"logprobs": True}, {"tool_choice": "required"}, {"stop": ["Zü", "noon"]}])
def test_calls_that_begin_with_a_control_token_are_read_and_the_token_is_no_text(
    template: str, says: str, begins: str, options: Any
) -> None:
    if begins and "tool_choice" in options:
        says, begins = says.removeprefix(begins), ""
    given: Any = {"model": "byte", "messages": ASK, "tools": TOOLS, "temperature": 0, **options}

    async def scenario() -> None:
        async with saying(says, template=template, has_marks=True) as client:
            answer = (await client.openai.chat.completions.create(**given)).choices[0]
            calls = [one.function for one in answer.message.tool_calls or () if one.type == "function"]
            assert [(one.name, json.loads(one.arguments)) for one in calls] == [("weather", ARGUMENTS), ("noon", {})]
            assert (answer.message.content or "", answer.finish_reason) == (begins, "tool_calls")
            if "logprobs" in options:
                tokens = [one.token for one in answer.logprobs.content]  # type: ignore[union-attr]
                assert tokens.count("[TOOL_CALLS]") == says.count("[[TOOL_CALLS]]")
            stream = await client.openai.chat.completions.create(**given, stream=True)
            chunks = [chunk.choices[0] async for chunk in stream]
            assert "".join(one.delta.content or "" for one in chunks) == begins
            told = [one.function for chunk in chunks for one in chunk.delta.tool_calls or ()]
            assert "".join(one.arguments or "" for one in told if one) == "".join(one.arguments for one in calls)

    in_loop(scenario)
