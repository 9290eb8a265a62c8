"""Reads the body of Anthropic's /v1/messages and makes the chat of it that answers it. Pure; used by its routes.

Every parameter that Anthropic documents is honoured, inert, or refused by name; null is the same as absent. What a chat
honours is the chat's to check: its errors get the names that this request has for the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.errors import BadRequest, LoopwrightError
from loopwright.core.model_info import ModelInfo
from loopwright.core.runs import ProgramInfo, RunSpec
from loopwright.server.body import convert_part
from loopwright.server.chat_request import ChatBody, ChatRequest, chat_of_program, chat_spec, read_chat, tell_begin
from loopwright.server.generation import NonEmpty, refuse
from loopwright.server.json_text import encode_json
from loopwright.server.message_parameters import MESSAGE_ASKS_NOTHING, MESSAGE_REFUSED
from loopwright.server.prompt_limits import MAX_MESSAGES, check_number
from loopwright.server.renaming import renamed
from loopwright.server.tool_request import MAX_TOOLS

Json = dict[str, Any]
Names = dict[str, str]
"""Fields of a chat, and those of this request that they were made of; what is more special comes first."""


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str
    cache_control: Any = None  # inert
    citations: Literal[None] = None


class ToolUseBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call that the model made."""

    id: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]+$")]
    name: NonEmpty
    input: dict[str, Any]
    cache_control: Any = None  # inert
    caller: Any = None  # inert: what an answer of ours says


class ToolResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    tool_use_id: NonEmpty
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None  # inert: the content says it
    cache_control: Any = None  # inert


class ThinkingBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """What the model thought. It is not shown to it again."""

    thinking: str
    signature: str


Block: TypeAlias = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock


class MessageIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnyChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="none"):
    pass


class SchemaOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: SchemaOutput | None = None
    effort: Any = None


class EnabledThinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1)]
    display: Literal[None] = None


class AdaptiveThinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="adaptive"):
    display: Literal[None] = None


class DisabledThinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    pass


class PromptBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the prompt is made of, and what holds the answer: the body of a count of tokens."""

    model: NonEmpty
    messages: Annotated[list[MessageIn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: AnyChoice | AutoChoice | NamedChoice | NoChoice | None = None
    output_config: OutputConfig | None = None
    thinking: EnabledThinking | AdaptiveThinking | DisabledThinking | None = None
    cache_control: Any = None  # inert

    mcp_servers: Any = None  # from here on as MESSAGE_REFUSED says
    context_management: Any = None
    compaction: Any = None
    speed: Any = None
    output_format: Any = None


class MessagesBody(PromptBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body as sent. Tools are read by their types later on."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[NonEmpty], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**62)] | None = None  # an extension

    metadata: Any = None  # from here on inert
    service_tier: str | None = None

    container: Any = None  # from here on as MESSAGE_REFUSED says
    inference_geo: Any = None
    diagnostics: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    billing_policy: Any = None
    thread: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request that was read. `max_thought_tokens` is None where the model may think as long as it likes."""

    chat: ChatRequest
    max_thought_tokens: int | None
    renamed: Callable[[LoopwrightError], LoopwrightError]


def read_messages_request(body: PromptBody) -> MessagesRequest:
    """Raises BadRequest naming the field that cannot be honoured."""
    refuse(body, MESSAGE_REFUSED, MESSAGE_ASKS_NOTHING)
    check_number("messages", len(body.messages), MAX_MESSAGES, "messages")
    check_number("tools", len(body.tools or ()), MAX_TOOLS, "tools")
    if body.messages[-1].role == "assistant":
        _check_prefill(body)
    messages, names = _as_chat_messages(body)
    names |= {f"tools[{number}].function.parameters": f"tools[{number}].input_schema" for number in _places(body)}
    names |= {f"tools[{number}].function": f"tools[{number}]" for number in _places(body)}
    names |= _NAMES

    def by_own_fields(error: LoopwrightError) -> LoopwrightError:
        return renamed(error, names)

    try:
        chat = read_chat(convert_part(_as_chat(body, messages), ChatBody))
    except BadRequest as error:
        raise by_own_fields(error) from None
    return MessagesRequest(chat, _max_thoughts(body), by_own_fields)


def _check_prefill(body: PromptBody) -> None:
    """Raises BadRequest for a last message of the assistant that cannot be gone on with, as Anthropic's API does."""
    field = f"messages[{len(body.messages) - 1}]"
    content = body.messages[-1].content
    blocks = [] if isinstance(content, str) else [block for block in content if not isinstance(block, ThinkingBlock)]
    problem = None
    if isinstance(body.thinking, EnabledThinking):
        problem = "a message that is begun already leaves no place for thinking"
    elif body.output_config is not None and body.output_config.format is not None:
        problem = "a message that is begun already cannot be held to output_config.format"
    elif any(isinstance(block, ToolUseBlock) for block in blocks):
        problem = "tool_use needs a tool_result in a message of the user behind it"
    else:
        text = content if isinstance(content, str) else "".join([getattr(block, "text", "") for block in blocks])
        if text != text.rstrip():
            problem = "what the answer goes on with cannot end with white space"
        elif not text:
            problem = "there is nothing that the answer could go on with"
    if problem is not None:
        raise BadRequest(f"{field}.content: {problem}", field=f"{field}.content")


def message_spec(request: MessagesRequest, model: ModelInfo, *, is_counted: bool = False) -> RunSpec:
    """The run of the built-in chat program that answers the request. `is_counted`: only its prompt is wanted.

    Raises BadRequest for thoughts of a model that has none."""
    spec = chat_spec(request.chat, model, may_exceed=is_counted)
    num_tokens = request.max_thought_tokens
    if num_tokens is not None and model.reasoning is not None:
        spec.arguments["options"]["max_thought_tokens"] = num_tokens
    elif num_tokens:
        message = f"thinking: the template of {model.name} has no tags for thoughts"
        raise BadRequest(message, hint="leave thinking out", field="thinking")
    if request.chat.generation.is_streamed:
        tell_begin(request.chat, spec)
    return spec


def message_of_program(request: MessagesRequest, program: ProgramInfo) -> RunSpec:
    """The run of a deployed program that answers it. `max_tokens`, which no request can leave out, goes to those that
    take it."""
    chat = request.chat
    if all(parameter.name != "max_tokens" for parameter in program.parameters):
        given = {name: value for name, value in chat.generation.given.items() if name != "max_tokens"}
        chat = replace(chat, generation=replace(chat.generation, given=given))
    return chat_of_program(chat, program)


def _max_thoughts(body: PromptBody) -> int | None:
    match body.thinking:
        case EnabledThinking(num_tokens):
            max_tokens = getattr(body, "max_tokens", None)
            if max_tokens is not None and num_tokens >= max_tokens:
                field = "thinking.budget_tokens"
                raise BadRequest(f"{field}: {num_tokens} is not below max_tokens, which is {max_tokens}", field=field)
            return num_tokens
        case DisabledThinking():
            return 0
    return None


_NAMES: Names = {
    "continue_final_message": "messages",
    "stop": "stop_sequences",
    "tool_choice.function": "tool_choice",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "max_completion_tokens": "max_tokens",
}
_SAME = ("model", "stream", "temperature", "top_p", "top_k", "seed")


def _places(body: PromptBody) -> range:
    return range(len(body.tools or ()))


def _as_chat(body: PromptBody, messages: list[Json]) -> Json:
    """The body of the chat completion that asks for the same."""
    output = body.output_config or OutputConfig()
    chat: Json = {name: getattr(body, name, None) for name in _SAME}
    chat |= {
        "messages": messages,
        "max_completion_tokens": getattr(body, "max_tokens", None),
        "stop": getattr(body, "stop_sequences", None),
        "continue_final_message": True if body.messages[-1].role == "assistant" else None,
        "response_format": _chat_format(output),
        "reasoning_effort": output.effort,
        "tools": None if body.tools is None else [_chat_tool(body.tools[at], f"tools[{at}]") for at in _places(body)],
        "tool_choice": _chat_choice(body.tool_choice),
        "parallel_tool_calls": False if getattr(body.tool_choice, "disable_parallel_tool_use", None) else None,
    }
    return {name: value for name, value in chat.items() if value is not None}


def _chat_format(output: OutputConfig) -> Json | None:
    if output.format is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": output.format.schema}}


class ToolIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool of the client's. The last four change nothing here."""

    name: str
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


def _chat_tool(given: Json, place: str) -> Json:
    if (kind := given.get("type")) not in (None, "custom"):
        message = f"{place}.type: {str(kind)[:50]!r} is not supported, only custom is"
        raise BadRequest(message, hint="the server has no tools of Anthropic's", field=f"{place}.type")
    tool = convert_part(given, ToolIn, place)
    function = {"name": tool.name, "parameters": tool.input_schema}
    more = {"description": tool.description, "strict": tool.strict}
    return {
        "type": "function",
        "function": {**function, **{name: one for name, one in more.items() if one is not None}},
    }


def _chat_choice(choice: AnyChoice | AutoChoice | NamedChoice | NoChoice | None) -> str | Json | None:
    match choice:
        case AnyChoice():
            return "required"
        case AutoChoice():
            return "auto"
        case NamedChoice(name):
            return {"type": "function", "function": {"name": name}}
        case NoChoice():
            return "none"
    return None


def _as_chat_messages(body: PromptBody) -> tuple[list[Json], Names]:
    messages: list[Json] = []
    inner: Names = {}
    names: Names = {}
    if body.system is not None:
        messages.append({"role": "system", "content": _text(body.system)})
        names["messages[0]"] = "system"
    for number, one in enumerate(body.messages):
        place = f"messages[{number}]"
        blocks = [TextBlock(one.content)] if isinstance(one.content, str) else one.content
        said, fields = _of_assistant(blocks, place) if one.role == "assistant" else _heard(one.role, blocks, place)
        for message, (own, of_inner) in zip(said, fields, strict=True):
            names[f"messages[{len(messages)}]"] = own
            inner |= {f"messages[{len(messages)}].{name}": field for name, field in of_inner.items()}
            messages.append(message)
    return messages, inner | names


Fields = list[tuple[str, Names]]
"""Of each message where it stands, and where its fields do that stand elsewhere."""


def _of_assistant(blocks: Sequence[Block], place: str) -> tuple[list[Json], Fields]:
    texts: list[str] = []
    calls: list[Json] = []
    inner: Names = {}
    for number, block in enumerate(blocks):
        at = f"{place}.content[{number}]"
        match block:
            case TextBlock(text):
                texts.append(text)
            case ToolUseBlock(call_id, name, given):
                inner[f"tool_calls[{len(calls)}].function.arguments"] = f"{at}.input"
                inner[f"tool_calls[{len(calls)}].function"] = at
                inner[f"tool_calls[{len(calls)}].id"] = f"{at}.id"
                function = {"name": name, "arguments": encode_json(given).decode()}
                calls.append({"id": call_id, "type": "function", "function": function})
            case ToolResultBlock():
                raise BadRequest(f"{at}.type: tool_result is a block of user messages", field=f"{at}.type")
    message: Json = {"role": "assistant", "content": "".join(texts)}
    return [{**message, "tool_calls": calls} if calls else message], [(place, inner)]


def _heard(role: str, blocks: Sequence[Block], place: str) -> tuple[list[Json], Fields]:
    """Results of tools are messages of their own; what is said between them is one too."""
    messages: list[Json] = []
    fields: Fields = []
    for number, block in enumerate(blocks):
        at = f"{place}.content[{number}]"
        match block:
            case TextBlock(text) if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += text
            case TextBlock(text):
                messages.append({"role": role, "content": text})
                fields.append((place, {}))
            case ToolResultBlock(call_id, content) if role == "user":
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(content)})
                fields.append((at, {"tool_call_id": f"{at}.tool_use_id"}))
            case _:
                kind = block.__struct_config__.tag
                raise BadRequest(f"{at}.type: {kind} is no block of {role} messages", field=f"{at}.type")
    if not messages:
        raise BadRequest(f"{place}.content: is empty", field=f"{place}.content")
    return messages, fields


def _text(content: str | list[TextBlock] | None) -> str:
    if isinstance(content, list):
        return "".join(block.text for block in content)
    return content or ""
