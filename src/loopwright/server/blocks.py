"""Turns the events of a run into one message of blocks: thoughts, text and tool calls, each in one piece, in order.

What the answers of Responses and of Anthropic's messages have in common. Pure; how a block is written is up to a form.
A whole answer is gathered by the same steps as a streamed one, so the two cannot differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from loopwright.core.errors import LoopwrightError
from loopwright.core.events import Emit, Event, Finished, Text, TokenLogprob, Tokens
from loopwright.server.answers import Answer, ended, read_emitted, read_outcome, text_of_result
from loopwright.server.json_text import encode_json
from loopwright.server.outcomes import Begun, CallTold, Choice, Usage
from loopwright.server.pieces import CallArguments, CallEnd, CallStart, Piece, Thoughts, Words

Kind: TypeAlias = Literal["reasoning", "text", "call"]
Json = dict[str, Any]


@dataclass(slots=True)
class Block:
    """One piece of a message, number `index` of it. `text` of a call is its arguments. `is_cut` when the answer ended
    inside it."""

    index: int
    kind: Kind
    call: CallStart | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_cut: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Message:
    """All that was answered, and when it was over, in seconds since the epoch."""

    blocks: Sequence[Block]
    end: Choice
    usage: Usage
    ended_s: float


class BlockForm(Protocol):
    """How one request's answer is written: as events, and as a whole. A block is opened, grows and is closed."""

    @property
    def alive(self) -> bytes:
        """As of EventStream."""
        ...

    def begin(self, num_prompt_tokens: int | None) -> bytes:
        """What comes before all else, once; None where nobody knows by then how many tokens the prompt has."""
        ...

    def opened(self, block: Block) -> bytes: ...

    def grown(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        """The block got that, and has it already."""
        ...

    def closed(self, block: Block) -> bytes: ...

    def end(self, message: Message) -> bytes: ...

    def failed(self, blocks: Sequence[Block], error: LoopwrightError) -> bytes:
        """The end of a stream that has begun and cannot go on."""
        ...

    def whole(self, message: Message) -> Json: ...


def whole_message(answer: Answer, form: BlockForm, events: Sequence[Event]) -> Json:
    """The whole answer, from all events. Raises the error that ended the run, if one did."""
    stream = BlockStream(answer, form)
    finished = events[-1]
    assert isinstance(finished, Finished), "a run's events end with a final one"
    stream.push(events[:-1])
    return form.whole(stream.close(finished)[1])


class BlockStream:
    """A `Writer` of a form's events. What comes together goes into a block together."""

    def __init__(self, answer: Answer, form: BlockForm) -> None:
        self._answer = answer
        self._form = form
        self._reader = answer.reader()
        self._blocks: list[Block] = []
        self._open: Block | None = None
        self._has_begun = False
        self._news: list[str] = []  # of the open block, not written yet
        self._new_logprobs: list[TokenLogprob] = []
        self.alive = form.alive

    def push(self, events: Sequence[Event]) -> bytes:
        written: list[bytes] = []
        for event in events:
            match event:
                case Text() | Tokens():
                    written += self._take(self._reader.read(0, event), getattr(event, "logprobs", ()))
                case Emit():
                    match read_emitted(self._answer, event):
                        case Begun(num_tokens):
                            written.append(self._begin(num_tokens))
                        case CallTold() as call:
                            arguments = encode_json(call.arguments).decode()
                            written += self._take(self._reader.call(call.name, arguments, call.id))
        return b"".join([*written, self._grow()])

    def finish(self, finished: Finished) -> bytes:
        written, message = self.close(finished)
        return written + self._form.end(message)

    def close(self, finished: Finished) -> tuple[bytes, Message]:
        """All that comes before the end of the message, and the message. Raises the error that ended the run."""
        outcome = read_outcome(self._answer, finished)
        written = self._take(self._reader.finish(0))
        end = ended(outcome.choices[0], self._reader)
        if self._answer.is_of_program and all(block.kind == "reasoning" for block in self._blocks):
            written += self._take([Words(text_of_result(finished))])
        if not self._blocks:
            written.append(self._turn_to("text"))  # an empty answer is an empty text
        if self._open is not None:
            self._open.is_cut = end.finish_reason == "length"
        written.append(self._shut())
        return b"".join(written), Message(self._blocks, end, outcome.usage, finished.time_s)

    def failed(self, error: LoopwrightError) -> bytes:
        if self._open is not None:
            self._open.is_cut = True
        return self._form.failed(self._blocks, error)

    def _take(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> list[bytes]:
        """The pieces of one event. Its log-probabilities are of its words."""
        written: list[bytes] = []
        for piece in pieces:
            match piece:
                case Words(text):
                    written.append(self._turn_to("text"))
                    self._news.append(text)
                    self._new_logprobs += logprobs
                    logprobs = ()
                case Thoughts(text):
                    written.append(self._turn_to("reasoning"))
                    self._news.append(text)
                case CallStart():
                    written += [self._shut(), self._new(Block(len(self._blocks), "call", piece))]
                case CallArguments(_, text):
                    self._news.append(text)
                case CallEnd(_, is_whole):
                    assert self._open is not None, "a call starts before it ends"
                    self._open.is_cut = not is_whole
                    written.append(self._shut())
        if self._open is not None and self._open.kind == "text":
            self._new_logprobs += logprobs
        return written

    def _turn_to(self, kind: Kind) -> bytes:
        """Goes on with a block of that kind: the open one, or a new one."""
        if self._open is not None and self._open.kind == kind:
            return b""
        return self._shut() + self._new(Block(len(self._blocks), kind))

    def _new(self, block: Block) -> bytes:
        begin = self._begin(None)
        self._open = block
        self._blocks.append(block)
        return begin + self._form.opened(block)

    def _begin(self, num_prompt_tokens: int | None) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        return self._form.begin(num_prompt_tokens)

    def _grow(self) -> bytes:
        if self._open is None or not (self._news or self._new_logprobs):
            return b""
        text, logprobs = "".join(self._news), self._new_logprobs
        self._news, self._new_logprobs = [], []
        self._open.texts.append(text)
        self._open.logprobs += logprobs
        return self._form.grown(self._open, text, logprobs)

    def _shut(self) -> bytes:
        if self._open is None:
            return b""
        written = self._grow()
        block, self._open = self._open, None
        return written + self._form.closed(block)
