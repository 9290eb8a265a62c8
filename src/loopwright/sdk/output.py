"""What a program says to the outside while it runs. Never waits. `print` goes to the log as well."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from loopwright.sdk.argument_check import checked
from loopwright.sdk.port import current_port


@checked
@dataclass(frozen=True, slots=True)
class Show:
    """What `generate` sends to the client beside the text, in events of the type `tokens`: `emit=Show(tokens=True)`.

    `index` says which of several answers it is. `tokens` are the sampled ids; `logprobs` those of the segment's options
    `logprobs` and `top_logprobs`, with each token's text. `channel` tells what the model thinks from its answer."""

    index: int = 0
    tokens: bool = False
    logprobs: bool = False
    channel: Literal["answer", "reasoning"] = "answer"


def emit_fields(emit: "bool | Show") -> dict[str, Any]:
    """What a segment's call says of it."""
    return {"emit": True, "shown": asdict(emit)} if isinstance(emit, Show) else {"emit": emit}


def emit(value: Any) -> None:  # noqa: ANN401 (JSON)
    """Sends a JSON value to the client as an event."""
    current_port().post({"op": "emit", "value": value})


@checked
def emit_text(text: str) -> None:
    """Sends text to the client; as a model name, it is the message's content."""
    current_port().post({"op": "emit_text", "text": text})


@checked
def emit_tool_call(name: str, arguments: dict[str, Any], *, id: str = "") -> None:
    """Has the client call one of its tools: as a model name, the message has the call, and its reason is `tool_calls`.
    Who chooses no `id` gets one made."""
    emit({"type": "tool_call", "name": name, "arguments": arguments, "id": id})


def log(*values: object) -> None:
    """Writes a line to the run's log."""
    current_port().log("log", " ".join(str(value) for value in values))
