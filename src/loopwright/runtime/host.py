"""Takes a program's calls to who answers them, services or the control layer's session, and the answers back.

Never starts or ends a run. Made by the launcher, one per run; the sandbox calls it as the program's Guest.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from loopwright.core import host_calls as calls
from loopwright.core.call_base import HostCall
from loopwright.core.call_table import require_traits
from loopwright.core.calls import QueueCall
from loopwright.core.control import Session
from loopwright.core.errors import (
    BadRequest,
    ErrorInfo,
    InternalError,
    LimitExceeded,
    LoopwrightError,
    PermissionDenied,
    ProgramError,
    from_info,
)
from loopwright.core.ids import CallId
from loopwright.core.no_collecting import no_collecting
from loopwright.core.raise_hint import raise_hint
from loopwright.core.results import CallResult, Completion, Done, Progress
from loopwright.core.results import Segment as SegmentResult
from loopwright.core.watch_calls import WatchCall
from loopwright.runtime.event_log import EventLog
from loopwright.runtime.facts import ModelText
from loopwright.runtime.limits import Limits
from loopwright.runtime.malformed import malformed
from loopwright.runtime.model_doors import ModelDoors
from loopwright.runtime.observation import Observation
from loopwright.runtime.segment_text import SegmentText
from loopwright.runtime.services import Answers
from loopwright.runtime.shown_tokens import ShownTokens

_decode = msgspec.json.Decoder(calls.ProgramCall).decode
_encode = msgspec.json.Encoder().encode

MIN_LARGE_BYTES = 16 << 10


@dataclass(slots=True)
class OpenCall:
    """A call that has not ended."""

    task: asyncio.Task[None] | None = None  # awaits a service; otherwise control has the call
    segment: calls.Segment | None = None
    text: SegmentText | None = None
    shown: ShownTokens | None = None
    session: Session | None = None  # which has it, if control does
    wants_answer: bool = True
    num_bytes: int = 0  # of its message, if that is large


class Host:
    """One program's Guest. `fail` ends the run with an error; it is called when a limit is passed where nobody can be
    told in another way. Use as a context manager around the sandbox: on exit every open call is dropped."""

    def __init__(
        self,
        *,
        doors: ModelDoors,
        answers: Answers,
        events: EventLog,
        limits: Limits,
        fail: Callable[[LoopwrightError], None],
        observation: Observation,
        denial_hint: str = "",
    ) -> None:
        self._doors = doors
        self._answers = answers
        self._events = events
        self._limits = limits
        self._fail = fail
        self._observation = observation
        self._denial_hint = denial_hint  # what else to say when a permission is missing
        self._tasks = asyncio.TaskGroup()
        self._open: dict[int, OpenCall] = {}
        self._next_handle = 1
        self._ready: list[bytes] = []  # encoded answers that the program has not taken
        self._num_unread_bytes = 0
        self._wake: Callable[[], None] | None = None
        self._is_over = False
        self._num_message_bytes = 0  # of the call that is being taken, if it is large
        self._fault: ErrorInfo | None = None  # the last that was not the program's doing, of what control answered

    async def __aenter__(self) -> "Host":
        await self._tasks.__aenter__()
        self._listen(self._doors.default)
        self._doors.when_opened = self._listen
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._wake = None
        for call in self._open.values():
            if call.task is not None:
                call.task.cancel()
        self._open.clear()
        await self._tasks.__aexit__(kind, error, trace)

    def blamed(self, error: ProgramError) -> LoopwrightError:
        """The error that a program ended with; if it only passed on a fault of the model's side, that fault."""
        if self._fault is None or self._fault.message != error.message:
            return error
        return from_info(msgspec.structs.replace(self._fault, traceback=error.traceback))

    # Guest: what the sandbox calls

    def submit(self, op: str) -> int:
        handle = self._next_handle
        self._next_handle += 1
        if self._is_over:
            return handle
        self._num_message_bytes = len(op) if len(op) > MIN_LARGE_BYTES else 0
        if not self._observation.has_begun:
            self._observation.begins()
        wants_answer = True
        try:
            call = self._decode_call(op)
            wants_answer = call.answer
            if isinstance(call, HostCall):  # what control answers it refuses itself, in the order of the queue
                require_traits(call, self._text_for(call).info)
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
        if not self._ready:
            return ""
        taken, self._ready, self._num_unread_bytes = self._ready, [], 0
        return (b"[" + b",".join(taken) + b"]").decode()

    def set_waker(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        if wake is None:
            self._observation.goes_on()
            return
        if not self._observation.has_begun:
            self._observation.begins()
        if self._ready:
            wake()
        else:
            self._observation.waits()

    # Calls

    def _decode_call(self, op: str) -> calls.ProgramCall:
        if len(op) > self._limits.max_message_bytes:
            raise LimitExceeded(
                f"a call has {len(op)} characters; the limit is {self._limits.max_message_bytes}",
                hint=raise_hint("max_message_bytes", self._limits.max_message_bytes),
                field="max_message_bytes",
            )
        if self._num_message_bytes:
            self._check_bytes(self._num_message_bytes)
        try:
            with no_collecting() if self._num_message_bytes else nullcontext():
                call = _decode(op.encode())
        except msgspec.DecodeError as error:  # ValidationError is one
            raise malformed(op, error) from None
        except (UnicodeEncodeError, RecursionError) as error:
            raise BadRequest(f"malformed call: {error}") from None
        is_release = isinstance(call, calls.Interrupt | calls.Cancel | WatchCall)  # what makes room needs none
        if len(self._open) >= self._limits.max_open_calls and not is_release:
            raise LimitExceeded(
                f"{len(self._open)} calls are open; the limit is {self._limits.max_open_calls}",
                hint=raise_hint("max_open_calls", self._limits.max_open_calls, "wait for some"),
                field="max_open_calls",
            )
        return call

    def _dispatch(self, handle: int, call: calls.ProgramCall) -> None:
        match call:
            case calls.Segment():
                self._begin_segment(handle, call)
            case calls.EmitValue() | calls.EmitText():
                self._emit(call)
                self._answer(handle, call, Done())
            case calls.Interrupt() | calls.Cancel():
                self._stop_call(call.handle)
                self._answer(handle, call, Done())
            case HostCall():
                self._serve(handle, call, self._answers[type(call)](call))
            case _:
                session = self._session_for(call)
                self._keep(handle, call, OpenCall(wants_answer=call.answer, session=session))
                session.submit(CallId(handle), call)
                self._take(session)  # what is answered at once suspends nobody

    def _emit(self, call: calls.EmitValue | calls.EmitText) -> None:
        if isinstance(call, calls.EmitValue):
            self._tell(lambda: self._events.emit(call.value, len(_encode(call.value))))
        else:
            self._tell(lambda: self._events.text(call.text))

    def _begin_segment(self, handle: int, call: calls.Segment) -> None:
        if call.emit and call.generate.watch is not None:
            raise BadRequest("emit: the text of a watched segment may be taken back", field="emit", hint="emit_text")
        session = self._session_for(call.generate)
        tokenizer = self._text_for(call).tokenizer
        text = SegmentText(call.generate, tokenizer)
        shown = ShownTokens(call.shown, call.generate, text, tokenizer) if call.emit and call.shown else None
        self._keep(handle, call, OpenCall(None, call, text, shown, session, call.answer))
        generate = msgspec.structs.replace(call.generate, progress=call.emit or call.stream)
        session.submit(CallId(handle), generate)

    def _serve(self, handle: int, call: HostCall, answer: object) -> None:
        """Answers with what a service returned: now, or by a task when it is there."""
        if not isinstance(answer, Coroutine | AsyncGenerator):
            self._answer(handle, call, answer)
            return
        task = self._tasks.create_task(self._finish_work(handle, call, answer))
        task.add_done_callback(lambda _: self._forget(handle, answer))  # also when cancelled before it began
        self._keep(handle, call, OpenCall(task=task, wants_answer=call.answer))

    def _keep(self, handle: int, call: HostCall | QueueCall, opened: OpenCall) -> None:
        opened.num_bytes = self._num_message_bytes
        self._open[handle] = opened
        self._observation.opened(handle, call)

    def _check_bytes(self, num_bytes: int) -> None:
        """Counts anew each time: large calls are few, and small ones are bounded by their number."""
        held = sum(call.num_bytes for call in self._open.values())
        if held + num_bytes > self._limits.max_open_bytes:
            raise LimitExceeded(
                f"a call has {num_bytes} characters, and those that are open hold {held}; "
                f"the limit is {self._limits.max_open_bytes} together",
                hint=raise_hint("max_open_bytes", self._limits.max_open_bytes, "wait for some"),
                field="max_open_bytes",
            )

    def _forget(self, handle: int, answer: "Coroutine[Any, Any, Any] | AsyncGenerator[Any]") -> None:
        self._close(handle)
        if isinstance(answer, Coroutine):
            answer.close()

    async def _finish_work(
        self, handle: int, call: HostCall, answer: "Coroutine[Any, Any, Any] | AsyncGenerator[Any]"
    ) -> None:
        payload: object = Done()
        try:
            if isinstance(answer, Coroutine):
                payload = await answer
            else:
                async with aclosing(answer) as parts:
                    async for part in parts:
                        self._push(handle, "part", part, call.answer)
        except LoopwrightError as error:
            self._answer_error(handle, error, call.answer)
        except Exception as error:  # noqa: BLE001 (the boundary of the run: a fault here is ours, and must not pass)
            self._answer_error(handle, InternalError(f"{type(error).__name__}: {error}"), call.answer)
        else:
            self._answer(handle, call, payload)
        finally:
            self._close(handle)  # before the program hears of it again: it may be at its limit

    def _close(self, handle: int) -> None:
        if self._open.pop(handle, None) is not None:
            self._observation.closed(handle)

    def _stop_call(self, handle: int) -> None:
        call = self._open.get(handle)
        if call is not None and call.task is not None:
            call.task.cancel()
            self._close(handle)  # at once: the program may issue others before the task hears of it
        elif call is not None and call.session is not None:
            call.session.interrupt(CallId(handle))

    def _session_for(self, call: QueueCall) -> Session:
        """That of the call's queue, or of the segment that it is about."""
        about = self._open.get(call.handle) if isinstance(call, WatchCall) else None
        return self._doors.session_for(call) if about is None or about.session is None else about.session

    def _text_for(self, call: HostCall) -> ModelText:
        if isinstance(call, calls.Segment):
            return self._doors.text_of_queue(call.generate.queue)
        return self._doors.text("" if isinstance(call, calls.Models) else getattr(call, "model", ""))

    # Answers

    def _listen(self, session: Session) -> None:
        session.when_news(lambda: self._take(session))

    def _take(self, session: Session) -> None:
        """Turns the completions of a session that are here into events."""
        if self._is_over:
            return
        try:
            for completion in session.take():
                self._complete(completion)
        except LoopwrightError as error:  # the session is over, and was not closed by us
            self._fail(error)
        except Exception as fault:  # noqa: BLE001 (the boundary of the run: the loop, which calls this, ends nobody)
            self._fail(InternalError(f"{type(fault).__name__}: {fault}"))

    def _complete(self, completion: Completion) -> None:
        handle = int(completion.call_id)
        call = self._open.get(handle)
        if call is None:
            return
        self._observation.told(handle, completion)
        if completion.is_final:
            self._close(handle)
        if completion.error is not None:
            if completion.error.code == "internal":
                self._fault = completion.error
            self._push(handle, "error", completion.error, call.wants_answer)
        elif completion.result is not None:
            self._complete_ok(handle, call, completion.result)

    def _complete_ok(self, handle: int, call: OpenCall, result: CallResult) -> None:
        if call.text is None or call.segment is None:
            self._push(handle, "part" if isinstance(result, Progress) else "ok", result, call.wants_answer)
        elif isinstance(result, Progress) and call.segment.generate.watch is not None:
            self._push(handle, "part", result)
        elif isinstance(result, Progress):
            self._part(handle, call, result, call.text.push(result.tokens), result.tokens)
        elif isinstance(result, SegmentResult):
            self._part(handle, call, result, call.text.finish(result.tokens), ())
            payload = msgspec.structs.asdict(result) | {"text": call.text.text}
            self._push(handle, "ok", payload, call.wants_answer)

    def _part(
        self, handle: int, call: OpenCall, result: Progress | SegmentResult, delta: str, tokens: tuple[int, ...]
    ) -> None:
        assert call.segment is not None
        if call.shown is not None:
            finish, push = call.shown.finish, call.shown.push
            shown = push(result, delta) if isinstance(result, Progress) else finish(result, delta)
            if shown:
                self._tell(lambda: self._events.tokens(shown))
        elif call.segment.emit and delta:
            self._tell(lambda: self._events.text(delta))
        if call.segment.stream and (delta or tokens):
            self._push(handle, "part", {"text": delta, "tokens": tokens})

    def _answer(self, handle: int, call: HostCall, payload: object) -> None:
        self._push(handle, "ok", payload, call.answer)

    def _answer_error(self, handle: int, error: LoopwrightError, wants_answer: bool) -> None:
        if isinstance(error, PermissionDenied) and self._denial_hint:
            error.hint = f"{error.hint}; {self._denial_hint}" if error.hint else self._denial_hint
        self._push(handle, "error", error.info(), wants_answer)

    def _push(self, handle: int, kind: str, payload: object, wants_answer: bool = True) -> None:
        if wants_answer and not self._is_over:
            event = b'[%d,"%s",%s]' % (handle, kind.encode(), _encode(payload))
            self._ready.append(event)
            self._num_unread_bytes += len(event)
            if self._num_unread_bytes > self._limits.max_unread_bytes:
                self._end_for_unread()
            elif self._wake is not None:
                self._observation.goes_on()
                self._wake()

    def _end_for_unread(self) -> None:
        """A program that asks and never takes the answers: they lie in our memory, not in its own."""
        self._is_over = True  # before the failure reaches it, it may ask a thousand times more
        self._ready.clear()
        limit = self._limits.max_unread_bytes
        self._fail(
            LimitExceeded(
                f"{self._num_unread_bytes} bytes of answers wait for the program; the limit is {limit}",
                hint=raise_hint("max_unread_bytes", limit, "await calls before issuing more"),
                field="max_unread_bytes",
            )
        )

    def _tell(self, write: Callable[[], None]) -> None:
        """Writes to the run's events; passing the output limit ends the run."""
        try:
            write()
        except LimitExceeded as error:
            self._fail(error)
