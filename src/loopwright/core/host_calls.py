"""The calls that the runtime answers itself, and the whole set a program may send. Never executes one.

Decoded by the runtime's host; schemas for the reference docs come from here, from `calls`, and from the modules that
hold one subject each and are part of the union below.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.core.call_base import HostCall
from loopwright.core.calls import Generate, QueueCall
from loopwright.core.child_calls import ChildCall
from loopwright.core.code_calls import RunCode
from loopwright.core.events import Channel
from loopwright.core.ids import TokenId
from loopwright.core.message_calls import MessageCall
from loopwright.core.outside_calls import OutsideCall
from loopwright.core.store_calls import StoreCall
from loopwright.core.traits import Trait


class Describe(HostCall, frozen=True, kw_only=True, tag="describe"):
    """The run and a model. What may be long comes only if it is listed in `include`: `parent` is the run that spawned
    this one, {run, context}, or null."""

    model: str = ""  # "" is the run's own
    include: tuple[Literal["arguments", "prompt_template", "parent", "tool_format"], ...] = ()


class Models(HostCall, frozen=True, kw_only=True, tag="models"):
    """The models that this server has, of those that have all of `traits`."""

    traits: tuple[Trait, ...] = ()


class Vocabulary(HostCall, frozen=True, kw_only=True, tag="vocabulary"):
    """What each token id adds to a text: `bytes` holds that of all ids in a row, `lengths` (little-endian uint16) how
    many bytes are each one's, 0 for control tokens. Both are base64."""

    model: str = ""  # "" is the run's own


class Adapters(HostCall, frozen=True, kw_only=True, tag="adapters"):
    """The names that forward_with_adapter takes."""

    model: str = ""


class EmbedsNeeded(HostCall, frozen=True, kw_only=True, tag="embeds_needed"):
    """How many embeds embed_image fills for an image."""

    image: bytes
    model: str = ""


class Tokenize(HostCall, frozen=True, kw_only=True, tag="tokenize"):
    """Text to token ids: {tokens}. Control tokens written in the text stay plain text."""

    text: str
    starts_context: bool = False  # put the model's beginning-of-sequence token first, if it has one
    must_fit: bool = False  # more tokens than the model's context has are refused
    model: str = ""


class Detokenize(HostCall, frozen=True, kw_only=True, tag="detokenize"):
    """Token ids to text: {text}. Control tokens have no text. With `each`, also {pieces}: each token by itself, as
    {token, text, bytes}, where a control token is written out."""

    tokens: tuple[TokenId, ...]
    each: bool = False
    model: str = ""


class CalledTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool that an assistant's message made."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One chat message. `tool_calls` are an assistant's, and stand behind its content."""

    role: str
    content: str
    name: str | None = None  # of the tool whose result it is
    tool_calls: tuple[CalledTool, ...] = ()
    tool_call_id: str | None = None  # of the call whose result it is


class ToolSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is told of a tool. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class RenderChat(HostCall, frozen=True, kw_only=True, tag="render_chat"):
    """Messages to token ids by the model's chat template: {tokens}.

    `messages[:num_done]` are in the context already; with `is_open`, the last of those is an assistant turn whose
    content is in the context and whose end is not. The ids are those that come after. `tools` are told to the model by
    its template, or in the first system message where the template takes none. `options` are what else a template
    reads, such as `enable_thinking`; one that it does not read is refused. With `continue_final` the last message, an
    assistant's, is left open behind its content, for the model to go on with; nothing may be done then."""

    messages: tuple[Message, ...]
    num_done: Annotated[int, Meta(ge=0)] = 0
    is_open: bool = False
    add_generation_prompt: bool = False
    continue_final: bool = False
    must_fit: bool = False  # as of `tokenize`
    tools: tuple[ToolSpec, ...] = ()
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    model: str = ""


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes to the client beside the text, and which of several answers it is."""

    index: Annotated[int, Meta(ge=0)] = 0
    tokens: bool = False
    logprobs: bool = False
    channel: Channel = "answer"


class Segment(HostCall, frozen=True, kw_only=True, tag="segment"):
    """Generate, with text. With `stream`, parts {text, tokens} come before the end; with `emit`, the text goes to the
    client as it is made, and with `shown` as events of the type tokens. Ends with the fields of results.Segment and
    `text`, which leaves the stop string out."""

    generate: Generate
    emit: bool = False
    shown: Shown | None = None
    stream: bool = False


class EmitValue(HostCall, frozen=True, kw_only=True, tag="emit"):
    """A JSON value for the client, as an event. Done."""

    value: Any


class EmitText(HostCall, frozen=True, kw_only=True, tag="emit_text"):
    """Text for the client, as an event. Done."""

    text: str


class Interrupt(HostCall, frozen=True, kw_only=True, tag="interrupt"):
    """Ends the segment behind `handle` at the next token boundary. Done."""

    handle: int


class Cancel(HostCall, frozen=True, kw_only=True, tag="cancel"):
    """Nobody waits for `handle` any more. Done."""

    handle: int


RuntimeCall: TypeAlias = (
    Describe | Models | Vocabulary | Adapters | EmbedsNeeded | Tokenize | Detokenize | RenderChat | Segment
    | EmitValue | EmitText | Interrupt | Cancel | OutsideCall | MessageCall | StoreCall | ChildCall | RunCode
)  # fmt: skip
ProgramCall: TypeAlias = QueueCall | RuntimeCall
"""Every call that a program may send."""
