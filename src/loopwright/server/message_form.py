"""The form of an answer of Anthropic's /v1/messages: the message with its blocks, and the events that tell of it.

Pure; never knows where text comes from. `blocks` calls it. A message starts, each block starts, grows and stops, and at
last the message says why it ended and what was used.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from loopwright.core.errors import LoopwrightError
from loopwright.core.events import TokenLogprob
from loopwright.server.answers import Answer
from loopwright.server.blocks import Block, Message
from loopwright.server.errors import anthropic_error
from loopwright.server.json_text import encode_json
from loopwright.server.outcomes import Choice, Usage
from loopwright.server.sse import sse_named

Json = dict[str, Any]

_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageForm:
    """How one message is written."""

    alive = sse_named("ping", {"type": "ping"})

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._frame = b""  # what stands before the text of a delta of the open block

    def begin(self, num_prompt_tokens: int | None) -> bytes:
        start = self._message([], None, _usage(Usage(prompt_tokens=num_prompt_tokens or 0)))
        return _event("message_start", message=start) + self.alive

    def opened(self, block: Block) -> bytes:
        delta, name = _DELTAS[block.kind]
        self._frame = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (block.index, delta.encode(), name.encode())
        )
        return _event("content_block_start", index=block.index, content_block=_block(block, is_begun=True))

    def grown(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        return b"%b%b}}\n\n" % (self._frame, encode_json(text)) if text else b""

    def closed(self, block: Block) -> bytes:
        return _event("content_block_stop", index=block.index)

    def end(self, message: Message) -> bytes:
        delta = {**_end(message.end), "container": None}
        used = {name: value for name, value in _usage(message.usage).items() if name in _USED}
        return _event("message_delta", delta=delta, usage=used) + _event("message_stop")

    def failed(self, blocks: Sequence[Block], error: LoopwrightError) -> bytes:
        return sse_named("error", anthropic_error(error))

    def whole(self, message: Message) -> Json:
        return self._message([_block(one) for one in message.blocks], message.end, _usage(message.usage))

    def _message(self, content: list[Json], end: Choice | None, usage: Json) -> Json:
        return {
            "id": f"msg_{self._answer.run_id}",
            "type": "message",
            "role": "assistant",
            "model": self._answer.model,
            "content": content,
            **_end(end),
            "container": None,
            "usage": usage,
        }


_USED = (
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens_details",
    "server_tool_use",
)  # fmt: skip


def _event(kind: str, **told: object) -> bytes:
    return sse_named(kind, {"type": kind, **told})


def _block(block: Block, *, is_begun: bool = False) -> Json:
    text = "" if is_begun else block.text
    if block.call is not None:
        given = {} if is_begun or block.is_cut else _arguments(block.text)
        caller = {"type": "direct"}
        return {"type": "tool_use", "id": block.call.call_id, "name": block.call.name, "input": given, "caller": caller}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text, "citations": None}


def _arguments(text: str) -> Any:  # noqa: ANN401 (JSON)
    return msgspec.json.decode(text or "{}")


def _end(end: Choice | None) -> Json:
    """Why a message ended; null of one that has not."""
    reason = sequence = None
    if end is not None:
        sequence = end.stop_reason if isinstance(end.stop_reason, str) else None
        named = {"length": "max_tokens", "tool_calls": "tool_use"}.get(end.finish_reason, "end_turn")
        reason = "stop_sequence" if sequence is not None and named == "end_turn" else named
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}


def _usage(usage: Usage) -> Json:
    """Anthropic's input tokens are those that ran: what was cached is counted beside them."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "output_tokens_details": {"thinking_tokens": usage.completion_tokens_details.reasoning_tokens},
        "inference_geo": None,
        "server_tool_use": None,
        "service_tier": "standard",
    }
