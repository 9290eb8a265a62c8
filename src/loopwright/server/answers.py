"""Turns the events of a run into an OpenAI answer, whole or in chunks. Never reads or sends anything; pure.

Used by the OpenAI routes. What the two forms of answer, chat and completion, have of their own is in `forms`. Of a
program as a model, the emitted text is the answer; of one that emitted none, its result is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loopwright.core.errors import LoopwrightError, from_info
from loopwright.core.events import Emit, Event, Finished, Text, Tokens
from loopwright.server.forms import Form
from loopwright.server.json_text import encode_json
from loopwright.server.outcomes import Outcome, Part, PromptShown, Usage
from loopwright.server.pieces import AnswerReader
from loopwright.server.sse import error_event, sse_data

DONE = sse_data(b"[DONE]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is the same in an answer and in all its chunks."""

    run_id: str
    model: str
    created_s: int
    fingerprint: str
    renamed: Callable[[LoopwrightError], LoopwrightError]  # an error of the run, by the names of the request's fields
    is_of_program: bool  # its result is the message when it emitted none; a built-in program's own result never is
    tool_format: str = ""  # how the model writes calls of tools, if it was given any

    def reader(self) -> AnswerReader:
        return AnswerReader(self.run_id, "" if self.is_of_program else self.tool_format)

    def body(self, form: Form, kind: str, choices: Sequence[dict[str, Any]], **more: object) -> dict[str, Any]:
        return {
            "id": f"{form.id_prefix}-{self.run_id}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


def whole_answer(answer: Answer, form: Form, events: Iterable[Event]) -> dict[str, Any]:
    """The whole answer, from all events. Raises the error that ended the run, if one did."""
    parts, prompts = dict[int, Part](), dict[int, PromptShown]()
    outcome, finished = Outcome(), None
    for event in events:
        match event:
            case Text() | Tokens():
                index = 0 if answer.is_of_program else getattr(event, "index", 0)
                parts.setdefault(index, Part()).add(event)
            case Emit() if not answer.is_of_program:
                shown = msgspec.convert(event.value, PromptShown)
                prompts[shown.prompt] = shown
            case Finished():
                finished = event
                outcome = read_outcome(answer, finished)
    assert finished is not None, "a run's events end with a final one"
    if answer.is_of_program and not any(part.text for part in parts.values()):
        parts[0] = Part([text_of_result(finished)])
    num_ways = max(1, len(outcome.choices) // max(1, len(prompts)))  # choices of one prompt
    choices = [
        form.choice(place, parts.get(one.candidate, Part()), one, prompts.get(place // num_ways))
        for place, one in enumerate(outcome.choices)
    ]
    return answer.body(form, form.whole, choices, usage=outcome.usage, **form.extras(prompts.get(0)))


class ChunkStream:
    """The same, piece by piece, as server-sent events. What comes together becomes one chunk for each choice.

    Of plain text, all of a chunk but the text is the same, and is encoded once."""

    def __init__(self, answer: Answer, form: Form, *, includes_usage: bool, num_ways: int = 1) -> None:
        self._answer = answer
        self._form = form
        self._includes_usage = includes_usage
        self._num_ways = num_ways  # choices of each prompt
        self._begun: set[int] = set()
        self._frame: tuple[bytes, bytes] | None = None  # what stands around the text of choice 0
        self._has_text = False

    def push(self, events: Sequence[Event]) -> bytes:
        """All but the final event, in order."""
        texts = [event.text for event in events if type(event) is Text]
        if len(texts) == len(events) and texts:
            return self._text("".join(texts))
        chunks: list[bytes] = []
        parts: dict[int, Part] = {}
        for event in events:
            match event:
                case Text() | Tokens():
                    index = 0 if self._answer.is_of_program else getattr(event, "index", 0)
                    parts.setdefault(index, Part()).add(event)
                case Emit() if not self._answer.is_of_program:
                    chunks.append(self._prompt(msgspec.convert(event.value, PromptShown)))
        chunks += [self._part(index, part) for index, part in parts.items()]
        return b"".join(chunks)

    def finish(self, finished: Finished) -> bytes:
        """All that comes after the text. Raises the error that ended the run, if one did."""
        outcome = read_outcome(self._answer, finished)
        chunks: list[bytes] = []
        if self._answer.is_of_program and not self._has_text:
            chunks.append(self._text(text_of_result(finished)))
        for place, choice in enumerate(outcome.choices):
            chunks += [self._opening(place), self._encode([self._form.end_delta(place, choice)])]
        if self._includes_usage:
            chunks.append(self._encode([], usage=outcome.usage))
        return b"".join([*chunks, DONE])

    def failed(self, error: LoopwrightError) -> bytes:
        """What an error is that ends the stream after its first chunk."""
        return error_event(error)

    def _text(self, text: str) -> bytes:
        """A chunk of plain text."""
        self._has_text = self._has_text or bool(text)
        opening = self._opening(0)
        if not text:
            return opening
        if self._frame is None:
            self._frame = _frame(self._encode([self._form.delta(0, Part([_MARK]))]))
        before, after = self._frame
        return b"".join((opening, before, encode_json(text), after))

    def _part(self, index: int, part: Part) -> bytes:
        if part.is_plain and index == 0:
            return self._text(part.text)
        self._has_text = self._has_text or bool(part.text)
        return self._opening(index) + self._encode([self._form.delta(index, part)])

    def _prompt(self, shown: PromptShown) -> bytes:
        first = shown.prompt * self._num_ways
        chunks: list[bytes] = []
        for index in range(first, first + self._num_ways):
            chunks.append(self._opening(index, shown))
            if (delta := self._form.prompt_delta(index, shown)) is not None:
                chunks.append(self._encode([delta]))
        return b"".join(chunks)

    def _opening(self, index: int, shown: PromptShown | None = None) -> bytes:
        """What comes before everything else of a choice, once."""
        if index in self._begun:
            return b""
        self._begun.add(index)
        if (delta := self._form.first_delta(index)) is None:
            return b""
        return self._encode([delta], **self._form.extras(shown))

    def _encode(self, choices: Sequence[dict[str, Any]], **more: object) -> bytes:
        return sse_data(encode_json(self._answer.body(self._form, self._form.chunk, choices, **more)))


_MARK = "\x00"  # stands for the text of a chunk; JSON writes it as an escape that nothing else in a chunk has


def _frame(chunk: bytes) -> tuple[bytes, bytes]:
    """What stands before and after the text; a model's name may hold the mark too, and comes before it."""
    before, _, after = chunk.rpartition(encode_json(_MARK))
    return before, after


def read_outcome(answer: Answer, finished: Finished) -> Outcome:
    """A program may return anything; what is not there has a default. Raises the error that ended the run."""
    if finished.error is not None:
        raise answer.renamed(from_info(finished.error))
    if answer.is_of_program:
        usage = finished.result.get("usage") if isinstance(finished.result, dict) else None
        try:
            return Outcome(usage=msgspec.convert(usage or {}, Usage))
        except msgspec.ValidationError:
            return Outcome()
    return msgspec.convert(finished.result or {}, Outcome)


def text_of_result(finished: Finished) -> str:
    """Of a program that emitted no text."""
    result = finished.result
    return result if isinstance(result, str) else encode_json(result).decode()
