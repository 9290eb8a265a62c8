"""How a model is told of tools: by its chat template where that takes them, by a system text of ours where not. Never
reads a call; the sdk does, in the same formats.

Called by ChatTemplate, and by the runtime, which tells programs the format.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

ToolFormat: TypeAlias = Literal["hermes", "llama3_json"]
"""hermes: <tool_call> and </tool_call> around {"name", "arguments"}. llama3_json: a turn that is {"name", "parameters"}
and nothing else, or several with "; " between them."""

Message: TypeAlias = Mapping[str, object]
"""At least `role` and `content`, a string; `tool_calls`, if any; what else a template may use is passed on."""

Call: TypeAlias = Mapping[str, object]
"""{name, arguments, id}, the second an object."""

Tool: TypeAlias = Mapping[str, object]
"""{name, description, parameters}, the last a JSON schema."""

_HOW_TO_CALL = {
    "hermes": 'To call one, write <tool_call>, a line with {"name": its name, "arguments": an object}, and '
    "</tool_call>, each on a line of its own.",
    "llama3_json": 'To call one, answer with {"name": its name, "parameters": an object} and nothing else.',
}


def tool_format(template: str) -> ToolFormat:
    """How a model with this chat template writes calls. One whose template says nothing about it is told how to."""
    return "llama3_json" if "<|start_header_id|>" in template and "<tool_call>" not in template else "hermes"


def functions(tools: Sequence[Tool]) -> list[dict[str, object]]:
    """The tools as templates expect them: the form of OpenAI's requests."""
    return [{"type": "function", "function": dict(tool)} for tool in tools]


def told_calls(messages: Sequence[Message]) -> list[Message]:
    """The calls in messages as templates expect them: the form of OpenAI's requests, but arguments as objects."""
    return [
        {**one, "tool_calls": [_told_call(call) for call in calls]} if (calls := _calls(one)) else one
        for one in messages
    ]


def written_calls(messages: Sequence[Message], format: ToolFormat) -> list[Message]:
    """For a template that knows nothing of calls: they are in the text, as the model writes them."""
    found: list[Message] = []
    for one in messages:
        if calls := _calls(one):
            texts = [str(one["content"])] if one["content"] else []
            texts += [_WRITTEN[format](call) for call in calls]
            one = {**one, "content": _BETWEEN[format].join(texts)}
        found.append({name: value for name, value in one.items() if name != "tool_calls"})
    return found


def _calls(message: Message) -> Sequence[Call]:
    calls = message.get("tool_calls", ())
    assert isinstance(calls, list | tuple)
    return calls


def _told_call(call: Call) -> dict[str, object]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"type": "function", "id": call["id"], "function": function}


def _json(**fields: object) -> str:
    return json.dumps(fields, ensure_ascii=False)


_WRITTEN: Mapping[str, Callable[[Call], str]] = {
    "hermes": lambda call: f"<tool_call>\n{_json(name=call['name'], arguments=call['arguments'])}\n</tool_call>",
    "llama3_json": lambda call: _json(name=call["name"], parameters=call["arguments"]),
}
_BETWEEN = {"hermes": "\n", "llama3_json": "; "}


def system_text(tools: Sequence[Tool], format: ToolFormat) -> str:
    """What a model is told whose template takes no tools."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join(["You may call these functions:", *lines, _HOW_TO_CALL[format]])


def told_in_messages(messages: Sequence[Message], tools: Sequence[Tool], format: ToolFormat) -> list[Message]:
    """The messages with the text at the end of the first one, if that is a system message, or as one before it."""
    text = system_text(tools, format)
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
