"""How a model is told of tools: by its chat template where that takes them, by a system text of ours where not. Never
reads a call; the sdk does, in the same formats.

Called by ChatTemplate, and by the runtime, which tells programs the format.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from loopwright.core.grammars import ToolFormat

# The formats. hermes: <tool_call> and </tool_call> around {"name", "arguments"}. smollm2: the same around a list.
# llama3_json: a turn that is {"name", "parameters"} and nothing else, or several with "; " between them. gemma: that,
# or it in a fence of JSON, or Python in a fence of tool_code. mistral: a turn that is a list of {"name", "arguments"}
# behind [TOOL_CALLS]. mistral_args: [TOOL_CALLS], a name, [ARGS], an object. pythonic: a turn that is a list of calls
# as name(argument=value).

Message: TypeAlias = Mapping[str, object]
"""At least `role` and `content`, a string; `tool_calls`, if any; what else a template may use is passed on."""

Call: TypeAlias = Mapping[str, object]
"""{name, arguments, id}, the second an object."""

Tool: TypeAlias = Mapping[str, object]
"""{name, description, parameters}, the last a JSON schema."""

_HOW_TO_CALL = {
    "hermes": 'To call one, write <tool_call>, a line with {"name": its name, "arguments": an object}, and '
    "</tool_call>, each on a line of its own.",
    "smollm2": "To call some, write <tool_call>, a list of "
    '{"name": its name, "arguments": an object}, and </tool_call>.',
    "llama3_json": 'To call one, answer with {"name": its name, "parameters": an object} and nothing else.',
    "gemma": 'To call one, answer with {"name": its name, "parameters": an object} and nothing else.',
    "mistral_args": "To call one, write [TOOL_CALLS], its name, [ARGS], and an object of arguments.",
    "mistral": 'To call some, answer with a list of {"name": its name, "arguments": an object} and nothing else.',
    "pythonic": "To call some, answer with [name(argument=value, …), …] and nothing else.",
}


def tool_format(template: str) -> ToolFormat:
    """How a model with this chat template writes calls. One whose template says nothing about it is told how to."""
    return next((format for text, format in _TELLING if text in template), "hermes")


_TELLING: tuple[tuple[str, ToolFormat], ...] = (
    ("<tool_call>", "hermes"),
    ("[ARGS]", "mistral_args"),
    ("[TOOL_CALLS]", "mistral"),
    ("func_name1(", "pythonic"),
    ("<|header_start|>", "pythonic"),  # Llama 4
    ("<|start_header_id|>", "llama3_json"),
    ("<start_of_turn>", "gemma"),
    ("named SmolLM", "smollm2"),
)
"""What a template has that tells the format: the first that is there counts."""


def functions(tools: Sequence[Tool]) -> list[dict[str, object]]:
    """The tools as templates expect them: the form of OpenAI's requests."""
    return [{"type": "function", "function": dict(tool)} for tool in tools]


def told_calls(messages: Sequence[Message], format: ToolFormat) -> list[Message]:
    """The calls in messages as templates expect them: the form of OpenAI's requests, but arguments as objects."""
    named = _short_id if format in ("mistral", "mistral_args") else str
    found: list[Message] = []
    for one in messages:
        if calls := _calls(one):
            one = {**one, "tool_calls": [_told_call(call, named(str(call["id"]))) for call in calls]}
        if "tool_call_id" in one:
            one = {**one, "tool_call_id": named(str(one["tool_call_id"]))}
        found.append(one)
    return found


def written_calls(messages: Sequence[Message], format: ToolFormat) -> list[Message]:
    """For a template that knows nothing of calls: they are in the text, as the model writes them."""
    found: list[Message] = []
    for one in messages:
        if calls := _calls(one):
            texts = [str(one["content"])] if one["content"] else []
            one = {**one, "content": "\n".join([*texts, _WRITTEN[format](calls)])}
        found.append({name: value for name, value in one.items() if name != "tool_calls"})
    return found


def _calls(message: Message) -> Sequence[Call]:
    calls = message.get("tool_calls", ())
    assert isinstance(calls, list | tuple)
    return calls


def _told_call(call: Call, call_id: str) -> dict[str, object]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"type": "function", "id": call_id, "function": function}


def _short_id(call_id: str) -> str:
    """Mistral's templates refuse an id that is not nine letters and digits: any other becomes one."""
    is_short = len(call_id) == 9 and call_id.isascii() and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _jsons(calls: Sequence[Call], key: str) -> list[str]:
    return [_json({"name": call["name"], key: call["arguments"]}) for call in calls]


def _pythonic(call: Call) -> str:
    arguments = call["arguments"]
    assert isinstance(arguments, Mapping)
    return f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


_WRITTEN: Mapping[str, Callable[[Sequence[Call]], str]] = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in _jsons(calls, "arguments")),
    "smollm2": lambda calls: f"<tool_call>[{', '.join(_jsons(calls, 'arguments'))}]</tool_call>",
    "llama3_json": lambda calls: "; ".join(_jsons(calls, "parameters")),
    "gemma": lambda calls: "; ".join(_jsons(calls, "parameters")),
    "mistral_args": lambda calls: "".join(
        f"[TOOL_CALLS]{call['name']}[ARGS]{_json(call['arguments'])}" for call in calls
    ),
    "mistral": lambda calls: f"[{', '.join(_jsons(calls, 'arguments'))}]",
    "pythonic": lambda calls: f"[{', '.join(map(_pythonic, calls))}]",
}


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
