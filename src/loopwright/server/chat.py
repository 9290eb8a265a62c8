"""Turns the events of a run into OpenAI's chat completion, whole or in chunks. Never reads or sends anything; pure.

Called by the route of chat completions. The emitted text is the content; of a program that emitted none, its result is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loopwright.core.errors import from_info
from loopwright.core.events import Finished
from loopwright.server.json_text import encode_json
from loopwright.server.sse import sse_data

DONE = sse_data(b"[DONE]")


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class _ChatResult(msgspec.Struct, frozen=True):
    """What the chat program returns."""

    finish_reason: str = "stop"
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Answer:
    """What is the same in a completion and in all its chunks."""

    run_id: str
    model: str
    created_s: int
    is_of_program: bool  # its result is the message when it emitted none; the chat program's own result never is

    def body(self, kind: str, choices: Sequence[dict[str, Any]], **more: object) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.run_id}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
            **more,
        }


def completion(answer: Answer, text: str, finished: Finished) -> dict[str, Any]:
    """The whole answer, from all the text and the final event. Raises the error that ended the run, if one did."""
    result = _read_result(answer, finished)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text or result.text, "refusal": None},
        "logprobs": None,
        "finish_reason": result.finish_reason,
    }
    return answer.body("chat.completion", [choice], usage=result.usage)


class ChunkStream:
    """The same, piece by piece, as server-sent events."""

    def __init__(self, answer: Answer, *, includes_usage: bool) -> None:
        self._answer = answer
        self._includes_usage = includes_usage
        self._has_begun = False

    def push(self, text: str) -> bytes:
        """The next piece of text; the first one also tells the role."""
        opening = b"" if self._has_begun else self._chunk({"role": "assistant", "content": ""})
        self._has_begun = True
        return opening + (self._chunk({"content": text}) if text else b"")

    def finish(self, finished: Finished) -> bytes:
        """All that comes after the text. Raises the error that ended the run, if one did."""
        result = _read_result(self._answer, finished)
        opening = b"" if self._has_begun else self.push(result.text)
        closing = self._chunk({}, finish_reason=result.finish_reason)
        usage = self._encode([], usage=result.usage) if self._includes_usage else b""
        return opening + closing + usage + DONE

    def _chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        return self._encode([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])

    def _encode(self, choices: Sequence[dict[str, Any]], **more: object) -> bytes:
        return sse_data(encode_json(self._answer.body("chat.completion.chunk", choices, **more)))


@dataclass(frozen=True, slots=True)
class _Result:
    """What an answer shows of a run's result."""

    text: str  # the message, if none was emitted
    finish_reason: str
    usage: Usage


def _read_result(answer: Answer, finished: Finished) -> _Result:
    """A program may return anything; what is not there has a default."""
    if finished.error is not None:
        raise from_info(finished.error)
    try:
        given = msgspec.convert(finished.result, _ChatResult)
    except msgspec.ValidationError:
        given = _ChatResult()
    if not answer.is_of_program:
        return _Result("", given.finish_reason, given.usage)
    text = finished.result if isinstance(finished.result, str) else encode_json(finished.result).decode()
    return _Result(text, "stop", given.usage)
