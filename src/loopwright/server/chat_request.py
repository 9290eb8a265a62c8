"""Reads the body of a chat completion of OpenAI's and makes the run that answers it. Pure; used by its route.

Every parameter that OpenAI documents is honoured, inert, or refused by name; null is the same as absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ProgramInfo, RunSpec
from loopwright.server.generation import (
    Generation,
    GenerationBody,
    Top,
    model_spec,
    program_spec,
    read_generation,
    refuse,
)

Message = dict[str, Any]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message's content. There is no other kind: images, audio and files are refused by their type."""

    text: str


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as sent. The last four are what OpenAI's own answers carry, as null or empty."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: Any = None
    tool_call_id: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None


MORE_FIELDS = ("name", "tool_call_id", "tool_calls", "function_call", "refusal", "audio", "annotations")


class ChatBody(GenerationBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body as sent."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None

    metadata: dict[str, str] | None = None  # from here on inert: they change no answer
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    tools: Any = None  # from here on as REFUSED says
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that was read. What a model does not honour is known when it is clear that a model answers."""

    body: ChatBody
    generation: Generation


def read_chat(body: ChatBody) -> ChatRequest:
    """Raises BadRequest naming the field that cannot be honoured."""
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs: only allowed when logprobs is true", field="top_logprobs")
    num_top = (body.top_logprobs or 0) if body.logprobs else None
    return ChatRequest(body, read_generation(body, max_tokens=_read_max_tokens(body), num_top=num_top))


def chat_spec(request: ChatRequest, model: ModelInfo) -> RunSpec:
    """The run of the built-in chat program that answers the request."""
    refuse(request.body)
    messages = [_plain_message(one, f"messages[{place}]") for place, one in enumerate(request.body.messages)]
    spec = model_spec("chat", {"messages": messages}, request.generation, model)
    if model.reasoning is not None:
        spec.arguments["options"] = {**spec.arguments["options"], "reasoning": list(model.reasoning)}
    return spec


def chat_of_program(request: ChatRequest, program: ProgramInfo) -> RunSpec:
    """The run of a deployed program that answers it: as `program_spec`, with `messages`."""
    messages = [_whole_message(one, f"messages[{place}]") for place, one in enumerate(request.body.messages)]
    return program_spec(program, request.generation, "messages", messages, lambda: _last_user_text(messages))


def _plain_message(message: MessageBody, place: str) -> Message:
    """For a model: a role and a text."""
    if message.role in ("tool", "function"):
        raise BadRequest(f"{place}.role: {message.role} messages are not supported", field=f"{place}.role")
    for name in MORE_FIELDS:
        if getattr(message, name) not in (None, []):
            raise BadRequest(f"{place}.{name}: not supported", hint="leave it out", field=f"{place}.{name}")
    if message.content is None:
        raise BadRequest(f"{place}.content: is required", field=f"{place}.content")
    return _whole_message(message, place)


def _whole_message(message: MessageBody, place: str) -> Message:
    """For a program: what was said of it, without what is null or empty."""
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    more = {name: getattr(message, name) for name in MORE_FIELDS}
    return {"role": role, "content": content, **{name: one for name, one in more.items() if one not in (None, [])}}


def _read_max_tokens(body: ChatBody) -> int | None:
    if body.max_tokens is None or body.max_completion_tokens is None:
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.max_tokens != body.max_completion_tokens:
        raise BadRequest(
            f"max_completion_tokens: {body.max_completion_tokens} contradicts max_tokens, which is {body.max_tokens}",
            hint="send one of the two",
            field="max_completion_tokens",
        )
    return body.max_tokens


def _last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if message["role"] == "user":
            return message["content"] or ""
    raise BadRequest("messages: there is no user message", field="messages")
