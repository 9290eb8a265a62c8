"""The form of an answer of /v1/responses: the response with its items, and the events that tell of it while it grows.

Never knows where text comes from. `blocks` calls it. The order of events is OpenAI's: an item is added, its part is
added, grows, is done, and so is the item; each event has the number behind that of the one before.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loopwright.core.errors import Cancelled, LoopwrightError
from loopwright.core.events import TokenLogprob
from loopwright.server.answers import Answer
from loopwright.server.blocks import Block, Message
from loopwright.server.errors import openai_error, status_of
from loopwright.server.json_text import encode_json
from loopwright.server.outcomes import Usage
from loopwright.server.response_request import ResponseRequest
from loopwright.server.sse import ALIVE, sse_named

Json = dict[str, Any]
Keep = Callable[[Json], None]
"""Is told of a response that has ended, before its client is."""

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


class ResponseForm:
    """How one response is written."""

    alive = ALIVE

    def __init__(self, answer: Answer, request: ResponseRequest, keep: Keep, after: int = -1) -> None:
        self._answer = answer
        self._asked = request
        self._keep = keep
        self._after = after  # events up to that number are not written
        self._num_events = 0
        self._frame = b""  # what stands before the number and the text of a delta of the open block

    def begin(self, num_prompt_tokens: int | None) -> bytes:
        response = self.response("in_progress", ())
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def opened(self, block: Block) -> bytes:
        item_id, at = self._item_id(block), {"output_index": block.index}
        added = self._event("response.output_item.added", **at, item=self._item(block, "in_progress"))
        delta = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}[block.kind]
        fixed: Json = {"type": f"response.{delta}.delta", "item_id": item_id, **at}
        if block.kind != "call":
            fixed["content_index"] = 0
            part = self._part(block)
            added += self._event("response.content_part.added", item_id=item_id, **at, content_index=0, part=part)
        self._frame = b"event: %b\ndata: %b" % (fixed["type"].encode(), encode_json(fixed)[:-1])
        return added

    def grown(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        more = b""
        if block.kind == "text":
            more = b',"logprobs":' + encode_json([self._logprob(one) for one in logprobs])
        if (number := self._next_number()) is None:
            return b""
        return b'%b%b,"sequence_number":%d,"delta":%b}\n\n' % (self._frame, more, number, encode_json(text))

    def closed(self, block: Block) -> bytes:
        item_id, at = self._item_id(block), {"output_index": block.index}
        done: list[bytes] = []
        if block.call is not None:
            told = {"name": block.call.name, "arguments": block.text}
            done.append(self._event("response.function_call_arguments.done", item_id=item_id, **at, **told))
        else:
            kind = "output_text" if block.kind == "text" else "reasoning_text"
            part = self._part(block)
            more = {"logprobs": part["logprobs"]} if block.kind == "text" else {}
            place = {"item_id": item_id, **at, "content_index": 0}
            done.append(self._event(f"response.{kind}.done", **place, text=block.text, **more))
            done.append(self._event("response.content_part.done", **place, part=part))
        return b"".join([*done, self._event("response.output_item.done", **at, item=self._done_item(block))])

    def end(self, message: Message) -> bytes:
        response = self.whole(message)
        return self._event(f"response.{response['status']}", response=response)

    def failed(self, blocks: Sequence[Block], error: LoopwrightError) -> bytes:
        status = status_of(error)
        code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"
        told = {"code": code, "message": openai_error(error)["error"].message}
        is_cancelled = isinstance(error, Cancelled)
        response = self.response(
            "cancelled" if is_cancelled else "failed", blocks, error=None if is_cancelled else told
        )
        self._keep(response)
        return self._event("response.failed", response=response)

    def whole(self, message: Message) -> Json:
        is_cut = message.end.finish_reason == "length"
        details = {"reason": "max_output_tokens"} if is_cut else None
        more: Json = {"incomplete_details": details, "usage": _usage(message.usage)}
        if not is_cut:
            more["completed_at"] = int(message.ended_s)
        response = self.response("incomplete" if is_cut else "completed", message.blocks, **more)
        self._keep(response)
        return response

    def response(self, status: str, blocks: Sequence[Block], **more: object) -> Json:
        """The response as it is when it has that status and these blocks."""
        body, generation = self._asked.body, self._asked.chat.generation
        sampling = generation.options["sampling"]
        text = body.text.format if body.text is not None else None
        return {
            "id": f"resp_{self._answer.run_id}",
            "object": "response",
            "created_at": self._answer.created_s,
            "status": status,
            "background": body.background is True,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": self._answer.model,
            "output": [self._done_item(block) for block in blocks],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": body.store is not False,
            "system_fingerprint": self._answer.fingerprint,
            "temperature": sampling["temperature"],
            "text": {"format": {"type": "text"} if text is None else _without_none(text)},
            "tool_choice": body.tool_choice or "auto",
            "tools": [{"parameters": None, "strict": None, **tool} for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.get("top_p", 1.0),
            "truncation": body.truncation or "disabled",
            "metadata": body.metadata or {},
            **{name: value for name in _TOLD_AGAIN if (value := getattr(body, name)) is not None},
            **more,
        }

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._answer.run_id}_{block.index}"

    def _done_item(self, block: Block) -> Json:
        return self._item(block, "incomplete" if block.is_cut else "completed")

    def _item(self, block: Block, status: str) -> Json:
        item: Json = {"id": self._item_id(block), "status": status}
        if block.call is not None:
            call = {"call_id": block.call.call_id, "name": block.call.name, "arguments": block.text}
            return {"type": "function_call", **item, **call}
        content = [] if status == "in_progress" else [self._part(block)]
        if block.kind == "reasoning":
            return {"type": "reasoning", **item, "summary": [], "content": content}
        return {"type": "message", **item, "role": "assistant", "content": content}

    def _part(self, block: Block) -> Json:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        logprobs = [self._logprob(one) for one in block.logprobs]
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}

    def _logprob(self, one: TokenLogprob) -> Json:
        top = one.top[: self._asked.body.top_logprobs or 0]
        return {**_entry(one), "top_logprobs": [_entry(other) for other in top]}

    def _event(self, kind: str, **told: object) -> bytes:
        if (number := self._next_number()) is None:
            return b""
        return sse_named(kind, {"type": kind, "sequence_number": number, **told})

    def _next_number(self) -> int | None:
        """That of the next event; None for one that was written before."""
        number, self._num_events = self._num_events, self._num_events + 1
        return number if number > self._after else None


_TOLD_AGAIN = ("user", "safety_identifier", "prompt_cache_key")


def _entry(one: TokenLogprob) -> Json:
    return {"token": one.text, "logprob": one.logprob, "bytes": one.bytes or []}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _without_none(part: msgspec.Struct) -> Json:
    return {name: value for name, value in msgspec.to_builtins(part).items() if value is not None}
