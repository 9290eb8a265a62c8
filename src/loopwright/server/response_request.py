"""Reads the body of /v1/responses and makes the chat of it that answers it. Pure; used by its routes.

Every parameter that OpenAI documents is honoured, inert, or refused by name; null is the same as absent. What a chat
honours is the chat's to check: its errors get the names that this request has for the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest, LoopwrightError
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ProgramInfo, RunSpec
from loopwright.server.body import convert_part
from loopwright.server.chat_request import ChatBody, ChatRequest, chat_of_program, chat_spec, read_chat, tell_begin
from loopwright.server.generation import NonEmpty, SamplingBody, Top, refuse
from loopwright.server.prompt_limits import MAX_MESSAGES, check_number
from loopwright.server.renaming import renamed
from loopwright.server.response_items import REFERENCE, Placed, as_messages, read_item
from loopwright.server.response_parameters import RESPONSE_REFUSED
from loopwright.server.tool_request import MAX_TOOLS

Json = dict[str, Any]
LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class NoObfuscation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_obfuscation: Literal[False] | None = None


class PlainFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    pass


class ObjectFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    pass


class SchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """A JSON schema. It is enforced, whether strict or not."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ReasoningBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the model is to think. All but the effort is refused."""

    effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    summary: Literal[None] = None
    generate_summary: Literal[None] = None
    context: Literal[None] = None


class TextBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: PlainFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Any = None


class ResponseBody(SamplingBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body as sent. Items and tools are read by their types later on."""

    model: NonEmpty
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: NoObfuscation | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    include: list[Includable] | None = None
    top_logprobs: Top | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None

    enable_thinking: bool | None = None  # an extension, as the next
    chat_template_kwargs: dict[str, Any] | None = None

    safety_identifier: str | None = None  # from here on inert
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None

    background_options: Any = None  # from here on as RESPONSE_REFUSED says
    conversation: Any = None
    context_management: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    moderation: Any = None
    access_programs: Any = None
    image: Any = None


class InputTokensBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a count of tokens: what of a response's body makes its prompt. Without a model it is the first."""

    input: str | list[dict[str, Any]]
    model: NonEmpty | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    truncation: Literal["auto", "disabled"] | None = None

    conversation: Any = None  # as RESPONSE_REFUSED says


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request that was read. `items` are its own, `before` those that it goes on from."""

    body: ResponseBody
    chat: ChatRequest
    items: tuple[Placed, ...]
    before: tuple[Json, ...]
    renamed: Callable[[LoopwrightError], LoopwrightError]


Find = Callable[[str, str], Json]
"""The item of an id that was kept. The second is the field that names it, for the error."""


def read_response(body: ResponseBody, before: Sequence[Json], find: Find) -> ResponseRequest:
    """`before` are the items of the response that this one goes on from. Raises BadRequest, or as `find` does."""
    refuse(body, RESPONSE_REFUSED, {})
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise BadRequest(f"top_logprobs: only allowed when include has {LOGPROBS}", field="top_logprobs")
    if body.stream_options is not None and body.stream is not True:
        raise BadRequest("stream_options: only allowed when stream is true", field="stream_options")
    if body.background and body.store is False:
        raise BadRequest("background: only allowed when store is not false", field="background")
    if isinstance(body.input, list):
        check_number("input", len(body.input), MAX_MESSAGES, "items")
    check_number("tools", len(body.tools or ()), MAX_TOOLS, "tools")
    items = _read_input(body.input, find)
    told = [Placed(read_item(item, "previous_response_id"), "previous_response_id") for item in before]
    messages, places = as_messages([*told, *items], body.instructions)
    names = {**places, **_names(len(body.tools or ()))}

    def by_own_fields(error: LoopwrightError) -> LoopwrightError:
        return renamed(error, names)

    try:
        chat = read_chat(convert_part(_as_chat(body, messages), ChatBody))
    except BadRequest as error:
        raise by_own_fields(error) from None
    return ResponseRequest(body, chat, tuple(items), tuple(before), by_own_fields)


def response_spec(request: ResponseRequest, model: ModelInfo, *, is_counted: bool = False) -> RunSpec:
    """The run of the built-in chat program that answers the request. `is_counted`: only its prompt is wanted."""
    is_cut = request.body.truncation == "auto"
    spec = chat_spec(request.chat, model, may_exceed=is_cut or is_counted)
    if is_cut:
        spec.arguments["options"]["drops_messages"] = True
    if request.body.stream or request.body.background:
        tell_begin(request.chat, spec)
    return spec


def response_of_program(request: ResponseRequest, program: ProgramInfo) -> RunSpec:
    """The run of a deployed program that answers it."""
    if request.body.truncation == "auto":
        raise BadRequest("truncation: a program decides itself what it keeps", field="truncation")
    return chat_of_program(request.chat, program)


def _read_input(given: str | list[Json], find: Find) -> list[Placed]:
    if isinstance(given, str):
        return [Placed(read_item({"role": "user", "content": given}, "input"), "input")]
    found: list[Placed] = []
    for number, one in enumerate(given):
        place = f"input[{number}]"
        if one.get("type") == REFERENCE or set(one) == {"id"}:
            one = find(str(one.get("id")), f"{place}.id")
        found.append(Placed(read_item(one, place), place))
    return found


def _as_chat(body: ResponseBody, messages: list[Json]) -> Json:
    """The body of the chat completion that asks for the same."""
    chat: Json = {name: getattr(body, name) for name in SamplingBody.__struct_fields__}
    chat |= {name: getattr(body, name) for name in _SAME}
    shows_logprobs = LOGPROBS in (body.include or ())
    text = body.text or TextBody()
    chat |= {
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": shows_logprobs or None,
        "top_logprobs": body.top_logprobs if shows_logprobs else None,
        "response_format": _chat_format(text),
        "verbosity": text.verbosity,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "tools": None if body.tools is None else [_chat_tool(one, f"tools[{at}]") for at, one in enumerate(body.tools)],
        "tool_choice": _chat_choice(body.tool_choice),
    }
    return {name: value for name, value in chat.items() if value is not None}


_SAME = (
    "model", "stream", "parallel_tool_calls", "enable_thinking", "chat_template_kwargs", "metadata",
    "safety_identifier", "prompt_cache_key", "service_tier",
)  # fmt: skip


def _chat_format(text: TextBody) -> Json | None:
    match text.format:
        case SchemaFormat():
            schema = {**msgspec.to_builtins(text.format)}
            kind = schema.pop("type")
            return {"type": kind, kind: schema}
        case None:
            return None
    return {"type": "json_object" if isinstance(text.format, ObjectFormat) else "text"}


def _chat_tool(tool: Json, place: str) -> Json:
    """A chat has the same function one level deeper. Hosted tools are nobody's here."""
    if (kind := tool.get("type")) != "function":
        message = f"{place}.type: {str(kind)[:50]!r} is not supported, only function is"
        raise BadRequest(message, hint="the server has no hosted tools", field=f"{place}.type")
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _chat_choice(choice: str | Json | None) -> str | Json | None:
    if not isinstance(choice, dict):
        return choice
    kind, rest = choice.get("type"), {name: value for name, value in choice.items() if name != "type"}
    if kind == "function":
        return {"type": "function", "function": rest}
    if kind == "allowed_tools":
        tools = rest.get("tools")
        named = [_chat_choice(one) for one in tools] if isinstance(tools, list) else tools
        return {"type": kind, kind: {**rest, "tools": named}}
    message = f"tool_choice.type: {str(kind)[:50]!r} is not supported, only function and allowed_tools are"
    raise BadRequest(message, field="tool_choice.type")


def _names(num_tools: int) -> Mapping[str, str]:
    """A chat's fields, and those of this request that they were made of."""
    return {f"tools[{number}].function": f"tools[{number}]" for number in range(num_tools)} | {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
        "verbosity": "text.verbosity",
        "reasoning_effort": "reasoning.effort",
        "tool_choice.function": "tool_choice",
        "tool_choice.allowed_tools": "tool_choice",
    }
