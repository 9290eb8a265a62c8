"""Answers a program's calls: its own at once or by a task, the control layer's through a session.

Never starts or ends a run. Made by the launcher, one per run; the sandbox calls it as the program's Guest.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from loopwright.core import host_calls as calls
from loopwright.core.call_table import require_traits
from loopwright.core.calls import WatchCall
from loopwright.core.control import Session
from loopwright.core.errors import BadRequest, InternalError, LimitExceeded, LoopwrightError
from loopwright.core.ids import CallId
from loopwright.core.results import CallResult, Completion, Done, Progress
from loopwright.core.results import Segment as SegmentResult
from loopwright.runtime import facts
from loopwright.runtime.egress import Egress
from loopwright.runtime.event_log import EventLog
from loopwright.runtime.limits import Limits
from loopwright.runtime.permissions import Permissions
from loopwright.runtime.segment_text import SegmentText
from loopwright.text.stream import detokenize

MAX_CHARS_ON_LOOP = 8192
"""Text that is tokenized on the event loop's thread: two milliseconds' worth."""

_decode = msgspec.json.Decoder(calls.ProgramCall).decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class OpenCall:
    """A call that has not ended."""

    task: asyncio.Task[None] | None = None  # answered by a task of the host; otherwise control has it
    segment: calls.Segment | None = None
    text: SegmentText | None = None
    wants_answer: bool = True


class Host:
    """One program's Guest. `fail` ends the run with an error; it is called when a limit is passed where nobody can be
    told in another way. Use as a context manager around the sandbox: on exit every open call is dropped."""

    def __init__(
        self,
        *,
        run: facts.RunFacts,
        session: Session,
        model: facts.ModelText,
        egress: Egress,
        events: EventLog,
        permissions: Permissions,
        limits: Limits,
        fail: Callable[[LoopwrightError], None],
    ) -> None:
        self._run = run
        self._session = session
        self._model = model
        self._egress = egress
        self._events = events
        self._permissions = permissions
        self._limits = limits
        self._fail = fail
        self._tasks = asyncio.TaskGroup()
        self._pump: asyncio.Task[None] | None = None
        self._open: dict[int, OpenCall] = {}
        self._next_handle = 1
        self._answers: list[bytes] = []
        self._wake: Callable[[], None] | None = None
        self._is_over = False

    async def __aenter__(self) -> "Host":
        await self._tasks.__aenter__()
        self._pump = self._tasks.create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._wake = None
        if self._pump is not None:
            self._pump.cancel()
        for call in self._open.values():
            if call.task is not None:
                call.task.cancel()
        self._open.clear()
        await self._tasks.__aexit__(kind, error, trace)

    # Guest: what the sandbox calls

    def submit(self, op: str) -> int:
        handle = self._next_handle
        self._next_handle += 1
        if self._is_over:
            return handle
        wants_answer = True
        try:
            call = self._decode_call(op)
            wants_answer = call.answer
            if isinstance(call, calls.HostCall):  # what control answers it refuses itself, in the order of the queue
                require_traits(call, self._model.info)
            self._dispatch(handle, call)
        except LoopwrightError as error:
            self._answer_error(handle, error, wants_answer)
        except Exception as fault:  # noqa: BLE001 (a callback of the sandbox must not raise: it would kill the program)
            self._answer_error(handle, InternalError(f"{type(fault).__name__}: {fault}"), wants_answer)
        return handle

    def log(self, stream: str, line: str) -> None:
        if not self._is_over:
            self._tell(lambda: self._events.log(stream, line))

    def take_events(self) -> str:
        if not self._answers:
            return ""
        taken, self._answers = self._answers, []
        return (b"[" + b",".join(taken) + b"]").decode()

    def set_waker(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        if wake is not None and self._answers:
            wake()

    # Calls

    def _decode_call(self, op: str) -> calls.ProgramCall:
        if len(op) > self._limits.max_message_bytes:
            raise LimitExceeded(f"a call has {len(op)} characters; the limit is {self._limits.max_message_bytes}")
        try:
            call = _decode(op.encode())
        except msgspec.DecodeError as error:  # ValidationError is one
            raise BadRequest(f"malformed call: {error}", field=str(error).rpartition("`$")[2].strip("`.")) from None
        except (UnicodeEncodeError, RecursionError) as error:
            raise BadRequest(f"malformed call: {error}") from None
        is_release = isinstance(call, calls.Interrupt | calls.Cancel | WatchCall)  # what makes room needs none
        if len(self._open) >= self._limits.max_open_calls and not is_release:
            raise LimitExceeded(f"{len(self._open)} calls are open; the limit is {self._limits.max_open_calls}")
        return call

    def _dispatch(self, handle: int, call: calls.ProgramCall) -> None:
        match call:
            case calls.Describe() | calls.Models() | calls.Adapters() | calls.EmbedsNeeded():
                self._answer(handle, call, facts.answer(call, self._run, self._model))
            case calls.Vocabulary():
                self._spawn(handle, call, lambda: asyncio.to_thread(facts.vocabulary, self._model))
            case calls.Tokenize():
                self._answer_text(handle, call, len(call.text), lambda: {"tokens": self._tokenize(call)})
            case calls.Detokenize():
                self._answer(handle, call, {"text": self._detokenize(call)})
            case calls.RenderChat():
                size = sum(len(message.content) for message in call.messages)
                self._answer_text(handle, call, size, lambda: {"tokens": self._render_chat(call)})
            case calls.Segment():
                self._begin_segment(handle, call)
            case calls.HttpRequest():
                self._spawn(handle, call, lambda: self._egress.request(call, self._permissions))
            case calls.EmitValue() | calls.EmitText():
                self._emit(call)
                self._answer(handle, call, Done())
            case calls.Interrupt() | calls.Cancel():
                self._stop_call(call.handle)
                self._answer(handle, call, Done())
            case _:  # the rest of the union is control's
                self._open[handle] = OpenCall(wants_answer=call.answer)
                self._session.submit(CallId(handle), call)

    def _emit(self, call: calls.EmitValue | calls.EmitText) -> None:
        if isinstance(call, calls.EmitValue):
            self._tell(lambda: self._events.emit(call.value, len(_encode(call.value))))
        else:
            self._tell(lambda: self._events.text(call.text))

    def _answer_text(
        self, handle: int, call: calls.Tokenize | calls.RenderChat, num_chars: int, work: Callable[[], object]
    ) -> None:
        """Answers at once, or from a thread when it takes so long that other programs would notice."""
        if num_chars <= MAX_CHARS_ON_LOOP:
            self._answer(handle, call, work())
        else:
            self._spawn(handle, call, lambda: asyncio.to_thread(work))

    def _tokenize(self, call: calls.Tokenize) -> list[int]:
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(call.text, "nothing" if call.starts_context else "text")
        if call.starts_context and tokenizer.add_bos and tokenizer.bos_id is not None:
            return [tokenizer.bos_id, *ids]
        return ids

    def _detokenize(self, call: calls.Detokenize) -> str:
        size = self._model.info.vocab_size
        if any(token >= size for token in call.tokens):
            raise BadRequest(f"token id {max(call.tokens)}; the vocabulary has {size}", field="tokens")
        return detokenize(self._model.tokenizer.token_bytes, call.tokens)

    def _render_chat(self, call: calls.RenderChat) -> list[int]:
        if self._model.chat_template is None:
            raise BadRequest(
                f"the model {self._model.info.name!r} has no chat template", hint="use append instead of chat roles"
            )
        messages = [{"role": message.role, "content": message.content} for message in call.messages]
        return self._model.chat_template.render_delta(messages, call.num_done, call.is_open, call.add_generation_prompt)

    def _begin_segment(self, handle: int, call: calls.Segment) -> None:
        if call.emit and call.generate.watch is not None:
            raise BadRequest("emit: the text of a watched segment may be taken back", field="emit", hint="emit_text")
        text = SegmentText(call.generate, self._model.tokenizer.token_bytes)
        self._open[handle] = OpenCall(segment=call, text=text, wants_answer=call.answer)
        generate = msgspec.structs.replace(call.generate, progress=call.emit or call.stream)
        self._session.submit(CallId(handle), generate)

    def _spawn(self, handle: int, call: calls.RuntimeCall, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        task = self._tasks.create_task(self._finish_work(handle, call, work))
        task.add_done_callback(lambda _: self._open.pop(handle, None))  # also when it is cancelled before it began
        self._open[handle] = OpenCall(task=task, wants_answer=call.answer)

    async def _finish_work(
        self, handle: int, call: calls.RuntimeCall, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> None:
        try:
            payload = await work()
        except LoopwrightError as error:
            self._answer_error(handle, error, call.answer)
        except Exception as error:  # noqa: BLE001 (the boundary of the run: a fault here is ours, and must not pass)
            self._answer_error(handle, InternalError(f"{type(error).__name__}: {error}"), call.answer)
        else:
            self._answer(handle, call, payload)
        finally:
            self._open.pop(handle, None)  # before the program hears of it again: it may be at its limit

    def _stop_call(self, handle: int) -> None:
        call = self._open.get(handle)
        if call is not None and call.task is not None:
            call.task.cancel()
            del self._open[handle]  # at once: the program may issue others before the task hears of it
        elif call is not None:
            self._session.interrupt(CallId(handle))

    # Answers

    async def _receive(self) -> None:
        """Turns the session's completions into events until the run is over."""
        while True:
            try:
                completions = await self._session.receive()
            except LoopwrightError as error:
                self._fail(error)
                return
            for completion in completions:
                self._complete(completion)

    def _complete(self, completion: Completion) -> None:
        handle = int(completion.call_id)
        call = self._open.get(handle)
        if call is None:
            return
        if completion.is_final:
            del self._open[handle]
        if completion.error is not None:
            self._push(handle, "error", completion.error, call.wants_answer)
        elif completion.result is not None:
            self._complete_ok(handle, call, completion.result)

    def _complete_ok(self, handle: int, call: OpenCall, result: CallResult) -> None:
        if call.text is None or call.segment is None:
            self._push(handle, "part" if isinstance(result, Progress) else "ok", result, call.wants_answer)
        elif isinstance(result, Progress) and call.segment.generate.watch is not None:
            self._push(handle, "part", result)
        elif isinstance(result, Progress):
            self._part(handle, call.segment, call.text.push(result.tokens), result.tokens)
        elif isinstance(result, SegmentResult):
            self._part(handle, call.segment, call.text.finish(result.tokens), ())
            payload = msgspec.structs.asdict(result) | {"text": call.text.text}
            self._push(handle, "ok", payload, call.wants_answer)

    def _part(self, handle: int, segment: calls.Segment, delta: str, tokens: tuple[int, ...]) -> None:
        if segment.emit and delta:
            self._tell(lambda: self._events.text(delta))
        if segment.stream and (delta or tokens):
            self._push(handle, "part", {"text": delta, "tokens": tokens})

    def _answer(self, handle: int, call: calls.ProgramCall, payload: object) -> None:
        self._push(handle, "ok", payload, call.answer)

    def _answer_error(self, handle: int, error: LoopwrightError, wants_answer: bool) -> None:
        self._push(handle, "error", error.info(), wants_answer)

    def _push(self, handle: int, kind: str, payload: object, wants_answer: bool = True) -> None:
        if wants_answer and not self._is_over:
            self._answers.append(b'[%d,"%s",%s]' % (handle, kind.encode(), _encode(payload)))
            if self._wake is not None:
                self._wake()

    def _tell(self, write: Callable[[], None]) -> None:
        """Writes to the run's events; passing the output limit ends the run."""
        try:
            write()
        except LimitExceeded as error:
            self._fail(error)
