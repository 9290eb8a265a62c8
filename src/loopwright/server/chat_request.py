"""Reads the body of a chat completion of OpenAI's and makes the run that answers it. Pure; used by its route.

Every parameter that OpenAI documents is honoured, inert, or refused by name; null is the same as absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

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
from loopwright.server.prompt_limits import (
    MAX_CALL_MARKS,
    MAX_MESSAGES,
    MAX_PARTS,
    check_messages,
    check_number,
)
from loopwright.server.tool_request import (
    AskedTools,
    CallBody,
    CalledFunction,
    FunctionBody,
    FunctionChoice,
    ToolBody,
    ToolChoice,
    read_call,
    read_calls,
    read_functions,
    read_tools,
)  # fmt: skip

Message = dict[str, Any]


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str


class RefusalPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """A part of what an assistant said, which is text to a model."""

    refusal: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """Refused, whatever else it says, as the next two are."""

    kind: ClassVar[str] = "images"


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    kind: ClassVar[str] = "audio"


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    kind: ClassVar[str] = "files"


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as sent. A name is taken and, with a model, of no effect: templates know roles alone. So are thoughts
    of an answer that is sent back: they are not shown again. The last three are what OpenAI's own answers carry, as
    null or empty."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[CallBody] | None = None
    function_call: CalledFunction | None = None
    reasoning_content: str | None = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None


MORE_FIELDS = (
    "name", "tool_call_id", "tool_calls", "function_call", "reasoning_content", "refusal", "audio", "annotations",
)  # fmt: skip


class ChatBody(GenerationBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body as sent."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None

    tools: list[ToolBody] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    enable_thinking: bool | None = None  # from here on extensions
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    metadata: dict[str, str] | None = None  # from here on inert: they change no answer
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    functions: list[FunctionBody] | None = None  # the older names of tools and tool_choice
    function_call: FunctionChoice | None = None

    modalities: Any = None  # from here on as REFUSED says
    audio: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    verbosity: Any = None
    web_search_options: Any = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that was read. What a model does not honour is known when it is clear that a model answers."""

    body: ChatBody
    generation: Generation
    tools: AskedTools | None = None

    @property
    def may_call(self) -> bool:
        """Whether the answer may hold calls of tools."""
        return self.tools is not None and self.tools.choice != "none"

    @property
    def is_legacy(self) -> bool:
        """Whether its tools are functions by the older name, and its calls are to be told so."""
        return bool(self.body.functions)


def read_chat(body: ChatBody) -> ChatRequest:
    """Raises BadRequest naming the field that cannot be honoured."""
    _check_size(body.messages)
    for place, message in enumerate(body.messages):
        _check_parts(message, f"messages[{place}]")
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs: only allowed when logprobs is true", field="top_logprobs")
    num_top = (body.top_logprobs or 0) if body.logprobs else None
    _check_opening(body)
    tools = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    functions = read_functions(body.functions, body.function_call)
    if tools is not None and functions is not None:
        raise BadRequest("functions: the older name of tools, which are there as well", field="functions")
    generation = read_generation(body, max_tokens=_read_max_tokens(body), num_top=num_top)
    return ChatRequest(body, generation, tools or functions)


def chat_spec(request: ChatRequest, model: ModelInfo, *, may_exceed: bool = False) -> RunSpec:
    """The run of the built-in chat program that answers the request. `may_exceed`: a prompt that cannot fit is taken,
    since it will be cut, or only counted."""
    refuse(request.body)
    more: dict[str, Any] = {}
    if (opening := _opening(request.body)) != "turn":
        more["opening"] = opening
    elif model.reasoning is not None:
        more["reasoning"] = list(model.reasoning)
    if request.tools is not None:
        more["tools"] = request.tools.options()
    if template := read_template_options(request.body, model):
        more["template"] = template
    messages = read_messages(request.body.messages)
    if request.body.truncate_prompt_tokens is None and not may_exceed:
        check_messages(messages, model)
    spec = model_spec("chat", {"messages": messages}, request.generation, model)
    spec.arguments["options"] = {**spec.arguments["options"], **more}
    return spec


def tell_begin(request: ChatRequest, spec: RunSpec) -> None:
    """Has the run say when its prompt is clear to run, where nothing else can be wrong with the request by then:
    whether a form or a strict tool can be held is not known so early."""
    is_held = request.generation.constraint is not None or (
        request.tools is not None and any(one.is_strict for one in request.tools.tools)
    )
    if not is_held:
        spec.arguments["options"]["tells_begin"] = True


def prompt_arguments(spec: RunSpec) -> dict[str, Any]:
    """What the prompt of a chat's run is made of, as the program `tokenize` takes it."""
    template = spec.arguments["options"].get("template", {})
    tools = spec.arguments["options"].get("tools", {}).get("tools", ())
    specs = [{name: value for name, value in one.items() if name != "strict"} for one in tools]
    opening = spec.arguments["options"].get("opening", "turn")
    return {
        "messages": spec.arguments["messages"],
        "tools": specs,
        "template": template,
        "add_generation_prompt": opening == "turn",
        "continue_final": opening == "last",
    }


def read_template_options(body: ChatBody, model: ModelInfo) -> dict[str, Any]:
    """What the model's chat template is to read. Raises BadRequest for what it does not, naming the field."""
    asked: dict[str, tuple[str, Any]] = {}  # by the template's name: the field, and its value
    for name, value in (body.chat_template_kwargs or {}).items():
        asked[name] = (f"chat_template_kwargs.{name[:100]}", value)
    effort = body.reasoning_effort
    for field, value in (("enable_thinking", body.enable_thinking), ("reasoning_effort", effort)):
        name = field
        if effort == "none" and field not in model.template_options and "enable_thinking" in model.template_options:
            name, value = "enable_thinking", False  # a template that knows whether to think, and not how hard
        if value is not None:
            if name in asked and asked[name][1] != value:
                raise BadRequest(f"{field}: {asked[name][0]} says otherwise", hint="send one of the two", field=field)
            asked[name] = (field, value)
    for name, (field, _) in asked.items():
        if name not in model.template_options:
            known = ", ".join(model.template_options) or "nothing beside messages and tools"
            raise BadRequest(
                f"{field}: not supported by the chat template of {model.name}, which reads {known}",
                hint=f"leave {field} out",
                field=field,
            )
    return {name: value for name, (_, value) in asked.items()}


def chat_of_program(request: ChatRequest, program: ProgramInfo) -> RunSpec:
    """The run of a deployed program that answers it: as `program_spec`, with `messages`."""
    messages = [_whole_message(one, f"messages[{place}]") for place, one in enumerate(request.body.messages)]
    return program_spec(program, request.generation, "messages", messages, lambda: _last_user_text(messages))


def read_messages(messages: Sequence[MessageBody]) -> list[Message]:
    """The messages as the chat program takes them. Raises BadRequest naming the message and its field."""
    names: dict[str, str] = {}  # of the tools that were called, by the ids of the calls
    return [_plain_message(one, f"messages[{place}]", names) for place, one in enumerate(messages)]


def _opening(body: ChatBody) -> str:
    """Where the answer begins, as the chat program takes it."""
    if body.continue_final_message:
        return "last"
    return "none" if body.add_generation_prompt is False else "turn"


def _check_opening(body: ChatBody) -> None:
    if not body.continue_final_message:
        return
    field = "continue_final_message"
    if body.add_generation_prompt:
        raise BadRequest(f"{field}: contradicts add_generation_prompt", hint="send one of the two", field=field)
    if (last := body.messages[-1]).role != "assistant" or last.tool_calls or last.function_call or not last.content:
        message = f"{field}: the last message must be the assistant's, and say something, without calls"
        raise BadRequest(message, field=field)


_KNOWN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "assistant": ("tool_calls", "function_call", "reasoning_content"),
    "tool": ("tool_call_id",),
}


def _plain_message(message: MessageBody, place: str, names: dict[str, str]) -> Message:
    """For a model: a role and a text, with an assistant's calls, and of a result the call."""
    known = ("name", *_KNOWN_FIELDS.get(message.role, ()))
    for name in MORE_FIELDS:
        if name not in known and getattr(message, name) not in (None, []):
            raise BadRequest(f"{place}.{name}: not supported", hint="leave it out", field=f"{place}.{name}")
    calls = read_calls(message.tool_calls or (), place)
    if message.function_call is not None:
        if calls:
            raise BadRequest(f"{place}.function_call: tool_calls are there as well", field=f"{place}.function_call")
        calls = [read_call(f"function_{place}", message.function_call, f"{place}.function_call")]
    known_ids: set[str] = set()
    for number, call in enumerate(calls):
        if call["id"] in known_ids:
            field = f"{place}.tool_calls[{number}].id"
            raise BadRequest(f"{field}: two calls have the id {call['id'][:130]!r}", field=field)
        known_ids.add(call["id"])
    if message.content is None and not calls:
        raise _no_content(place)
    plain = {"role": _role(message), "content": _content(message) or ""}
    if message.role == "tool":
        return {**plain, **_of_call(message, place, names)}
    if message.role == "function":
        return {**plain, "role": "tool", **_of_function(message, place, names)}
    names |= {call["id"]: call["name"] for call in calls}
    return {**plain, "tool_calls": calls} if calls else plain


def _of_call(message: MessageBody, place: str, names: Mapping[str, str]) -> Message:
    """Which call a result is of."""
    call_id, field = message.tool_call_id, f"{place}.tool_call_id"
    if call_id is None:
        raise BadRequest(f"{field}: is required", field=field)
    if call_id not in names:
        raise BadRequest(f"{field}: no message before has a call with the id {call_id[:130]!r}", field=field)
    return {"tool_call_id": call_id, "name": names[call_id]}


def _of_function(message: MessageBody, place: str, names: Mapping[str, str]) -> Message:
    """Which call a result is of that names the function alone: the last one."""
    found = [call_id for call_id, name in names.items() if name == message.name]
    if not found:
        field, name = f"{place}.name", message.name
        problem = "is required" if name is None else f"no message before calls a function {name[:130]!r}"
        raise BadRequest(f"{field}: {problem}", field=field)
    return {"tool_call_id": found[-1], "name": message.name}


def _whole_message(message: MessageBody, place: str) -> Message:
    """For a program: what was said of it, without what is null or empty."""
    if message.content is None and not message.tool_calls and message.function_call is None:
        raise _no_content(place)
    more = {name: msgspec.to_builtins(getattr(message, name)) for name in MORE_FIELDS}
    more = {name: one for name, one in more.items() if one not in (None, [])}
    return {"role": _role(message), "content": _content(message), **more}


def _no_content(place: str) -> BadRequest:
    return BadRequest(f"{place}.content: is required", field=f"{place}.content")


def _role(message: MessageBody) -> str:
    return "system" if message.role == "developer" else message.role


def _content(message: MessageBody) -> str | None:
    content = message.content
    if isinstance(content, list):
        return "".join(
            [part.refusal if isinstance(part, RefusalPart) else getattr(part, "text", "") for part in content]
        )
    return content


def _check_size(messages: Sequence[MessageBody]) -> None:
    """Raises BadRequest for more than anybody reads in one go."""
    check_number("messages", len(messages), MAX_MESSAGES, "messages")
    parts = sum(len(one.content) for one in messages if isinstance(one.content, list))
    check_number("messages", parts, MAX_PARTS, "parts of contents")
    calls = [call.function for one in messages for call in one.tool_calls or ()]
    calls += [one.function_call for one in messages if one.function_call is not None]
    check_number("messages", len(calls), MAX_PARTS, "calls of tools")
    marks = sum(call.arguments.count(mark) for call in calls for mark in ",[{")
    check_number("messages", marks, MAX_CALL_MARKS, "commas and brackets in the arguments of calls")


def _check_parts(message: MessageBody, place: str) -> None:
    """Raises BadRequest for what is no text."""
    for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
        field = f"{place}.content[{number}]"
        if isinstance(part, RefusalPart):
            if message.role != "assistant":
                raise BadRequest(f"{field}.type: refusal is a part of what an assistant says", field=f"{field}.type")
        elif not isinstance(part, TextPart):
            raise BadRequest(
                f"{field}: {part.kind} cannot be read: every model of this server takes text alone",
                hint="send parts of the type text, or the content as a string",
                field=field,
            )


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
