"""Reads the body of an OpenAI chat completion and makes the run that answers it. Never starts it; pure. Called by chat.

Every parameter that OpenAI documents is honoured, inert, or refused by name; null is the same as absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import Parameter, ProgramInfo, RunSpec

PROGRAM_PREFIX = "program:"
MAX_TOKEN_DIGITS = 18

HONOURED_VALUES: Mapping[str, Sequence[object]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "audio": (),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Parameters that are known and not honoured in general: only null and these values, which ask for nothing, pass."""

NonEmpty = Annotated[str, Meta(min_length=1)]


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


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body as sent."""

    model: NonEmpty
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**62)] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Meta(max_length=16)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None  # not OpenAI's: an extension, like min_p
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None

    user: str | None = None  # from here on inert: they change no answer
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None

    n: Any = None  # from here on as HONOURED_VALUES says
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    store: Any = None
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
    """A request that can be honoured. `options` are the sampling options it set, by the names of the chat program."""

    model: str
    messages: list[dict[str, str]]
    options: dict[str, Any]
    is_streamed: bool
    includes_usage: bool


def read_chat(body: ChatBody) -> ChatRequest:
    """Raises BadRequest naming the field that cannot be honoured."""
    for name, values in HONOURED_VALUES.items():
        _check_honoured(name, getattr(body, name), values)
    is_streamed = body.stream is True
    if body.stream_options is not None and not is_streamed:
        raise BadRequest("stream_options: only allowed when stream is true", field="stream_options")
    return ChatRequest(
        model=body.model,
        messages=[_read_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)],
        options=_read_options(body),
        is_streamed=is_streamed,
        includes_usage=body.stream_options is not None and body.stream_options.include_usage is True,
    )


def chat_spec(request: ChatRequest, model: ModelInfo) -> RunSpec:
    """The run of the built-in chat program that answers the request."""
    for token in request.options.get("logit_bias", {}):
        if int(token) >= model.vocab_size:
            message = f"logit_bias: {token} is no token id of {model.name}; ids end at {model.vocab_size - 1}"
            raise BadRequest(message, field="logit_bias")
    arguments = {"messages": request.messages, **request.options, "stream": request.is_streamed}
    return RunSpec(program="chat", arguments=arguments, sandbox="native", seed=request.options.get("seed"))


def program_spec(request: ChatRequest, program: ProgramInfo) -> RunSpec:
    """The run of a deployed program that answers the request.

    A parameter `messages` gets the list; without one, the first text parameter gets the last user message. Sampling
    options go to parameters of the same names. Raises BadRequest when something given or required has no place."""
    parameters = {parameter.name: parameter for parameter in program.parameters}
    arguments: dict[str, Any] = {}
    for name, value in request.options.items():
        if name in parameters:
            arguments[name] = value
        elif name != "seed" and value != _NEUTRAL.get(name):
            message = f"{name}: the main of {request.model} has no parameter of that name"
            raise BadRequest(message, hint=f"leave {name} out", field=name)
    if "messages" in parameters:
        arguments["messages"] = request.messages
    elif (parameter := _text_parameter(program.parameters)) is not None:
        arguments[parameter.name] = _last_user_text(request.messages)
    for parameter in program.parameters:
        if parameter.is_required and parameter.name not in arguments:
            raise BadRequest(
                f"the main of {request.model} requires {parameter.name!r}, which a chat request cannot give",
                hint=f"use POST /v1/programs/{program.name}/runs",
                field="model",
            )
    return RunSpec(program=program.name, arguments=arguments, seed=request.options.get("seed"), has_input=False)


_NEUTRAL: Mapping[str, object] = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "stop": [], "logit_bias": {}}


def _check_honoured(name: str, value: object, honoured: Sequence[object]) -> None:
    if value is None or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in honoured):
        return
    allowed = " or ".join(msgspec.json.encode(one).decode() for one in honoured)
    message = f"{name}: only {allowed} is supported" if allowed else f"{name}: not supported"
    raise BadRequest(message, hint=f"leave {name} out", field=name)


def _read_message(message: MessageBody, place: str) -> dict[str, str]:
    if message.role in ("tool", "function"):
        raise BadRequest(f"{place}.role: {message.role} messages are not supported", field=f"{place}.role")
    for name in ("name", "tool_call_id", "tool_calls", "function_call", "refusal", "audio", "annotations"):
        if getattr(message, name) not in (None, []):
            raise BadRequest(f"{place}.{name}: not supported", hint="leave it out", field=f"{place}.{name}")
    if message.content is None:
        raise BadRequest(f"{place}.content: is required", field=f"{place}.content")
    role = "system" if message.role == "developer" else message.role
    content = message.content
    return {"role": role, "content": content if isinstance(content, str) else "".join(part.text for part in content)}


def _read_options(body: ChatBody) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_tokens": _read_max_tokens(body),
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "seed": body.seed,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "logit_bias": body.logit_bias,
    }
    for token in body.logit_bias or {}:
        if not (token.isascii() and token.isdecimal() and len(token) <= MAX_TOKEN_DIGITS):
            raise BadRequest(f"logit_bias: {token[:50]!r} is no token id", field="logit_bias")
    return {name: value for name, value in options.items() if value is not None}


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


def _text_parameter(parameters: Sequence[Parameter]) -> Parameter | None:
    """The first text parameter that must be given, or else the first one at all."""
    texts = [parameter for parameter in parameters if parameter.type == "str"]
    return next((parameter for parameter in texts if parameter.is_required), texts[0] if texts else None)


def _last_user_text(messages: Sequence[Mapping[str, str]]) -> str:
    for message in reversed(messages):
        if message["role"] == "user":
            return message["content"]
    raise BadRequest("messages: there is no user message", field="messages")
