"""The chat side of a context: which messages it holds and whether the assistant's turn is open.

Never talks to the model. Owned by one Context, which renders what `delta` describes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loopwright.sdk.errors import BadRequest

Message = dict[str, Any]
Tool = dict[str, Any]
"""What the model is told of a tool: {name, description, parameters}."""


def plain_message(message: Message) -> Message:
    """A message in the form of OpenAI's requests, as `render_chat` takes it. Raises BadRequest for one that neither
    says nor calls anything, and for arguments of a call that are no JSON object."""
    if not any(message.get(name) is not None for name in ("content", "tool_calls", "function_call")):
        known = ", ".join(map(str, message))
        raise BadRequest(f"messages: a message has {known}, and no content", hint='write "content"', field="messages")
    kept = {name: message[name] for name in ("role", "name", "tool_call_id") if message.get(name) is not None}
    found = {**kept, "content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_plain_call(one) for one in calls]
    return found


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise BadRequest(f"tool_calls: the arguments of {function['name']} are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise BadRequest(f"tool_calls: the arguments of {function['name']} are no JSON object")
    return {"id": call["id"], "name": function["name"], "arguments": arguments}


@dataclass(slots=True)
class Transcript:
    """Messages that are in the context. While `is_open`, the last one is an assistant message still being written."""

    messages: list[Message] = field(default_factory=list)
    is_open: bool = False
    tools: list[Tool] = field(default_factory=list)  # that the first messages tell of
    options: dict[str, Any] = field(default_factory=dict)  # that the chat template reads

    def delta(self, new: Sequence[Message], opens_turn: bool) -> dict[str, Any]:
        """Arguments of render_chat for what must follow the context to add `new` and, if asked, open a turn."""
        return {
            "messages": [*self.messages, *new],
            "num_done": len(self.messages),
            "is_open": self.is_open,
            "add_generation_prompt": opens_turn,
            "tools": self.tools,
            "options": self.options,
        }

    def extend(self, new: Sequence[Message], opens_turn: bool) -> None:
        """Records that what `delta` described is in the context now."""
        self.messages.extend(new)
        self.is_open = opens_turn
        if opens_turn:
            self.messages.append({"role": "assistant", "content": ""})

    def write(self, text: str) -> None:
        """Records text of the open turn."""
        if self.is_open:
            last = self.messages[-1]
            self.messages[-1] = {**last, "content": last["content"] + text}

    def announce(self, tools: Sequence[Tool]) -> None:
        """Has the first messages tell of the tools. Raises BadRequest if they are written and tell of others."""
        new = [tool for tool in tools if tool not in self.tools]
        if not new:
            return
        if self.messages:
            raise BadRequest(
                f"tools: the chat has begun and does not tell of {', '.join(tool['name'] for tool in new)}",
                field="tools",
                hint="name all tools in the context's first `generate` or `stream`; later ones may take some of them",
            )
        self.tools = [*self.tools, *new]

    def copy(self) -> "Transcript":
        return Transcript(list(self.messages), self.is_open, self.tools, self.options)
