"""The items of Responses' input and output: reads them, makes a chat's messages of them, and gives them ids.

Pure. What is no message, call, result or thought is refused by its type. Used by `response_request` and the store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.server.body import convert_part

Json = dict[str, Any]


class InputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    text: str
    annotations: Any = None
    logprobs: Any = None


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str


Content: TypeAlias = str | list[InputText | OutputText | Refusal]
Status = Literal["in_progress", "completed", "incomplete"]


class MessageItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: Any = None  # inert


class CallItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    """A call that the model made; `arguments` is JSON."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class ResultItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"):
    call_id: Annotated[str, Meta(min_length=1)]
    output: str | list[InputText | OutputText]
    id: str | None = None
    status: Status | None = None


class SummaryText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    text: str


class ReasoningItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """What the model thought. It is kept and not shown to the model again."""

    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    id: str | None = None
    status: Status | None = None
    encrypted_content: str | None = None


Item: TypeAlias = MessageItem | CallItem | ResultItem | ReasoningItem
KINDS: Mapping[str, type[Item]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": ResultItem,
    "reasoning": ReasoningItem,
}
REFERENCE = "item_reference"


@dataclass(frozen=True, slots=True)
class Placed:
    """An item, and where it stands in the request."""

    item: Item
    place: str


def read_item(given: Json, place: str) -> Item:
    """Raises BadRequest naming the place in the body."""
    kind = given.get("type") or "message"
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadRequest(
            f"{place}.type: {str(kind)[:50]!r} is not supported; {', '.join(KINDS)} and {REFERENCE} are",
            field=f"{place}.type",
        )
    return convert_part(_without_null({**given, "type": kind}), KINDS[kind], place)


def kept_item(item: Item, item_id: str) -> Json:
    """The item as it is kept and listed: with an id and a status, and its content as parts."""
    kept = {"id": item.id or item_id, "status": getattr(item, "status", None) or "completed"}
    match item:
        case MessageItem(role="assistant", content=content):
            said = [OutputText(content)] if isinstance(content, str) else content
            return {**_told(item), **kept, "content": [_output_part(part) for part in said]}
        case MessageItem(content=content):
            heard = [InputText(content)] if isinstance(content, str) else content
            return {**_told(item), **kept, "content": [_told(part) for part in heard]}
    return {**_told(item), **kept}


def as_messages(placed: Sequence[Placed], instructions: str | None) -> tuple[list[Json], dict[str, str]]:
    """The messages of a chat, and of their fields those of the request behind them. Calls belong to the message before
    them."""
    messages: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    inner: dict[str, str] = {}  # fields within a message
    names: dict[str, str] = {} if instructions is None else {"messages[0]": "instructions"}
    for one in placed:
        field = f"messages[{len(messages)}]"
        match one.item:
            case MessageItem(role, content):
                messages.append({"role": role, "content": _text(content)})
            case CallItem(call_id, name, arguments):
                if not (messages and messages[-1]["role"] == "assistant"):
                    messages.append({"role": "assistant", "content": None})
                    names[field] = one.place
                calls = messages[-1].setdefault("tool_calls", [])
                inner[f"messages[{len(messages) - 1}].tool_calls[{len(calls)}].id"] = f"{one.place}.call_id"
                inner[f"messages[{len(messages) - 1}].tool_calls[{len(calls)}].function"] = one.place
                function = {"name": name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
                continue
            case ResultItem(call_id, output):
                inner |= {f"{field}.tool_call_id": f"{one.place}.call_id", f"{field}.content": f"{one.place}.output"}
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(output)})
            case ReasoningItem():
                continue
        names[field] = one.place
    return messages, inner | names


def _text(content: Content | list[InputText | OutputText]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)


def _output_part(part: InputText | OutputText | Refusal) -> Json:
    if isinstance(part, Refusal):
        return _told(part)
    annotations, logprobs = getattr(part, "annotations", None), getattr(part, "logprobs", None)
    return {"type": "output_text", "text": part.text, "annotations": annotations or [], "logprobs": logprobs or []}


def _told(part: msgspec.Struct) -> Json:
    """The part as JSON, without what is null."""
    return {name: value for name, value in msgspec.to_builtins(part).items() if value is not None}


def _without_null(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Clients send back what they were given with a null for each field that they know of."""
    if isinstance(value, dict):
        return {name: _without_null(one) for name, one in value.items() if one is not None}
    return [_without_null(one) for one in value] if isinstance(value, list) else value
