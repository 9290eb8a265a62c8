"""Turns the events of a run into an OpenAI answer, whole or in chunks. Never reads or sends anything; pure.

Used by the OpenAI routes. What the two forms of answer, chat and completion, have of their own is in `forms`. Of a
program as a model, the emitted text is the answer; of one that emitted none, its result is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loopwright.core.errors import LoopwrightError, from_info
from loopwright.core.events import Emit, Event, Finished, Text, Tokens
from loopwright.server.errors import of_program
from loopwright.server.forms import Form
from loopwright.server.json_text import encode_json
from loopwright.server.outcomes import (
    Begun,
    CallTold,
    Choice,
    CompletionDetails,
    Outcome,
    Part,
    PromptDetails,
    PromptShown,
    Usage,
)
from loopwright.server.pieces import AnswerReader, Words
from loopwright.server.sse import ALIVE, error_event, sse_data

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
    tool_format: str = ""  # how the model writes calls of tools, if it may make any
    is_answer_held: bool = False  # to a form of its own, where it is no call

    def reader(self) -> AnswerReader:
        tool_format = "" if self.is_of_program else self.tool_format
        return AnswerReader(self.run_id, tool_format, is_answer_held=self.is_answer_held)

    def index_of(self, event: Text | Tokens) -> int:
        """Of the choice that the text belongs to; a program has but one."""
        return 0 if self.is_of_program else getattr(event, "index", 0)

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
    parts, prompts = defaultdict[int, Part](Part), dict[int, PromptShown]()
    reader, outcome, finished = answer.reader(), Outcome(), None
    for event in events:
        match event:
            case Text() | Tokens():
                index = answer.index_of(event)
                parts[index].add(reader.read(index, event), event)
            case Emit():
                match read_emitted(answer, event):
                    case PromptShown() as shown:
                        prompts[shown.prompt] = shown
                    case CallTold() as call:
                        parts[0].pieces += reader.call(call.name, _json(call.arguments), call.id)
            case Finished():
                finished = event
                outcome = read_outcome(answer, finished)
    assert finished is not None, "a run's events end with a final one"
    if answer.is_of_program and not any(part.pieces for part in parts.values()):
        parts[0] = Part([Words(text_of_result(finished))])
    num_ways = max(1, len(outcome.choices) // max(1, len(prompts)))  # choices of one prompt
    choices: list[dict[str, Any]] = []
    for place, one in enumerate(outcome.choices):
        part = parts[one.candidate]
        part.pieces += reader.finish(one.candidate)
        choices.append(form.choice(place, part, ended(one, reader), prompts.get(place // num_ways)))
    return answer.body(form, form.whole, choices, usage=outcome.usage, **form.extras(prompts.get(0)))


class ChunkStream:
    """The same, piece by piece, as server-sent events. What comes together becomes one chunk for each choice.

    Of plain text, all of a chunk but the text is the same, and is encoded once."""

    alive = ALIVE

    def __init__(self, answer: Answer, form: Form, *, includes_usage: bool, num_ways: int = 1) -> None:
        self._answer = answer
        self._form = form
        self._includes_usage = includes_usage
        self._num_ways = num_ways  # choices of each prompt
        self._begun: set[int] = set()
        self._reader = answer.reader()
        self._frame: tuple[bytes, bytes] | None = None  # what stands around the text of choice 0
        self._is_empty = True  # so far

    def push(self, events: Sequence[Event]) -> bytes:
        """All but the final event, in order."""
        texts = [event.text for event in events if type(event) is Text]
        if len(texts) == len(events) and texts and self._reader.is_plain:
            return self._text("".join(texts))
        chunks: list[bytes] = []
        parts = defaultdict[int, Part](Part)
        for event in events:
            match event:
                case Text() | Tokens():
                    index = self._answer.index_of(event)
                    parts[index].add(self._reader.read(index, event), event)
                case Emit():
                    match read_emitted(self._answer, event):
                        case PromptShown() as shown:
                            chunks.append(self._prompt(shown))
                        case CallTold() as call:
                            parts[0].pieces += self._reader.call(call.name, _json(call.arguments), call.id)
        chunks += [self._part(index, part) for index, part in parts.items()]
        return b"".join(chunks)

    def finish(self, finished: Finished) -> bytes:
        """All that comes after the text. Raises the error that ended the run, if one did."""
        outcome = read_outcome(self._answer, finished)
        chunks: list[bytes] = []
        if self._answer.is_of_program and self._is_empty:
            chunks.append(self._text(text_of_result(finished)))
        for place, choice in enumerate(outcome.choices):
            if pieces := self._reader.finish(choice.candidate):
                chunks.append(self._part(place, Part(pieces)))
            end = self._form.end_delta(place, ended(choice, self._reader))
            chunks += [self._opening(place), self._encode([end])]
        if self._includes_usage:
            chunks.append(self._encode([], usage=outcome.usage))
        return b"".join([*chunks, DONE])

    def failed(self, error: LoopwrightError) -> bytes:
        """What an error is that ends the stream after its first chunk."""
        return error_event(error)

    def _text(self, text: str) -> bytes:
        """A chunk of plain text."""
        self._is_empty = self._is_empty and not text
        opening = self._opening(0)
        if not text:
            return opening
        if self._frame is None:
            self._frame = _frame(self._encode([self._form.delta(0, Part([Words(_MARK)]))]))
        before, after = self._frame
        return b"".join((opening, before, encode_json(text), after))

    def _part(self, index: int, part: Part) -> bytes:
        if part.is_plain and index == 0:
            return self._text(part.text)
        self._is_empty = self._is_empty and not part.pieces
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


def read_emitted(answer: Answer, event: Emit) -> PromptShown | Begun | CallTold | None:
    """What a program tells of its answer. A deployed one may emit anything; what is no call of a tool is nobody's."""
    if not answer.is_of_program:
        told: PromptShown | Begun = msgspec.convert(event.value, PromptShown | Begun)
        return told
    try:
        return msgspec.convert(event.value, CallTold)
    except msgspec.ValidationError:
        return None


def ended(choice: Choice, reader: AnswerReader) -> Choice:
    """A choice whose reason says whether it ended for its calls."""
    return msgspec.structs.replace(choice, finish_reason=reader.end_reason(choice.candidate, choice.finish_reason))


def read_outcome(answer: Answer, finished: Finished) -> Outcome:
    """A program may return anything; what is not there has a default. Raises the error that ended the run."""
    if finished.error is not None:
        error = from_info(finished.error)
        raise answer.renamed(of_program(error) if answer.is_of_program else error)
    if answer.is_of_program:
        return Outcome(usage=counted(finished))
    return msgspec.convert(finished.result or {}, Outcome)


def counted(finished: Finished) -> Usage:
    """What ran for a program, as control counted it, whatever the program says. How many of the tokens were thoughts is
    known to it alone: as many as it says, and no more than there are."""
    ran, said = finished.ran, finished.result.get("usage") if isinstance(finished.result, dict) else None
    try:
        details = msgspec.convert(said or {}, Usage).completion_tokens_details
    except msgspec.ValidationError:
        details = CompletionDetails()
    return Usage(
        ran.prompt_tokens,
        ran.generated_tokens,
        ran.prompt_tokens + ran.generated_tokens,
        PromptDetails(ran.cached_tokens),
        CompletionDetails(min(max(details.reasoning_tokens, 0), ran.generated_tokens)),
    )


def text_of_result(finished: Finished) -> str:
    """Of a program that emitted no text."""
    result = finished.result
    return result if isinstance(result, str) else _json(result)


def _json(value: object) -> str:
    return encode_json(value).decode()
