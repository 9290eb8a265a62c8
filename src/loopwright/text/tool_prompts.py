"""How a model is told of tools: by its chat template where that takes them, by a system text of ours where not. Never
reads a call; the sdk does, in the same formats.

Called by ChatTemplate, and by the runtime, which tells programs the format.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

ToolFormat: TypeAlias = Literal["hermes", "llama3_json"]
"""hermes: <tool_call> and </tool_call> around {"name", "arguments"}. llama3_json: a turn that is {"name", "parameters"}
and nothing else, or several with "; " between them."""

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


def system_text(tools: Sequence[Tool], format: ToolFormat) -> str:
    """What a model is told whose template takes no tools."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join(["You may call these functions:", *lines, _HOW_TO_CALL[format]])


def told_in_messages(
    messages: Sequence[Mapping[str, object]], tools: Sequence[Tool], format: ToolFormat
) -> list[Mapping[str, object]]:
    """The messages with the text at the end of the first one, if that is a system message, or as one before it."""
    text = system_text(tools, format)
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
