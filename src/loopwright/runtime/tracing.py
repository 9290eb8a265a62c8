"""Records what one run asks for, token by token, and how long it waits: issue, completion and observation of each call.

Never changes an answer, and is not on the path of a run that nobody traces: it stands between a run's host and its
sandbox, and between the host and control, when the launcher was given a sink.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from loopwright.core.calls import ForwardText, Generate, MaskPage, QueueCall
from loopwright.core.clock import Clock
from loopwright.core.control import Session
from loopwright.core.errors import ErrorInfo
from loopwright.core.ids import CallId, RunId
from loopwright.core.results import CallResult, Completion, Forwarded, Progress, Segment
from loopwright.runtime.facts import ModelText
from loopwright.runtime.sandbox import Guest


class TraceRecord(msgspec.Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    """What every record has. `at_s` counts from the run's start; `handle` is the call's."""

    run: RunId
    at_s: float
    handle: int


class Issued(TraceRecord, frozen=True, tag="issued"):
    """The program asked. `masks` says in words what is hidden from the model, and what may not be chosen."""

    op: str
    call: Any
    masks: tuple[str, ...] = ()


class Sampled(TraceRecord, frozen=True, tag="sampled"):
    """A token was chosen. `wait_s` is the time since the one before it, or since the call; `num_allowed` says among how
    many tokens, if a grammar or vetoes left some out: 1 is forced."""

    index: int
    token: int
    text: str
    logprob: float
    wait_s: float
    num_allowed: int | None = None


class Inputs(msgspec.Struct, frozen=True):
    """Where the KV of a call's tokens came from: the context had it, the prefix cache had it, or they were run."""

    num_in_context: int
    num_cached: int
    num_run: int


class Completed(TraceRecord, frozen=True, tag="completed"):
    """Control is done with the call, `wait_s` after its issue. `result` leaves distributions out."""

    op: str
    wait_s: float
    result: Any = None
    error: ErrorInfo | None = None
    inputs: Inputs | None = None


class Observed(TraceRecord, frozen=True, tag="observed"):
    """The program has the answer, `wait_s` after it asked."""

    op: str
    wait_s: float
    is_error: bool = False
    answer: Any = None  # of what the runtime answered; control's is in Completed


Trace: TypeAlias = Issued | Sampled | Completed | Observed
TraceSink: TypeAlias = Callable[[Trace], None]


@dataclass(slots=True)
class _Call:
    """A call that the program has no answer to."""

    op: str
    at_s: float
    last_s: float  # of the last token, or of the issue
    queued: QueueCall | None = None
    num_tokens: int = 0
    is_forced_to_tell: bool = False  # its progress is ours, and not the program's
    early: Completion | None = None  # that came before the call was known


class RunTrace:
    """The trace of one run: wraps its session and its host."""

    def __init__(self, run_id: RunId, model: ModelText, clock: Clock, sink: TraceSink) -> None:
        self._run_id = run_id
        self._token_bytes = model.tokenizer.token_bytes
        self._vocab_size = model.info.vocab_size
        self._clock = clock
        self._sink = sink
        self._start_s = clock.now_s()
        self._calls: dict[int, _Call] = {}
        self._held: list[Trace] | None = None  # told when the call is that a program is making; None: none is

    def session(self, session: Session) -> Session:
        """The session, with its calls and completions recorded."""
        return _TracedSession(session, self)

    def guest(self, guest: Guest) -> Guest:
        """The host as its program sees it, with what is asked and what is taken recorded."""
        return _TracedGuest(guest, self)

    # From the session

    def queue(self, handle: int, call: QueueCall) -> QueueCall:
        """Notes a call that goes to control; a segment is made to tell its tokens."""
        now_s = self._now_s()
        known = self._calls[handle] = _Call(op="", at_s=now_s, last_s=now_s, queued=call)
        if not isinstance(call, Generate):
            return call
        known.is_forced_to_tell = not call.progress and call.watch is None
        return msgspec.structs.replace(call, progress=True, explain=True)

    def complete(self, completion: Completion) -> bool:
        """Notes a completion. False if it is not for the program, which had not asked for it."""
        handle = int(completion.call_id)
        call = self._calls.get(handle)
        if call is None:
            return True
        if not call.op:  # answered before `issue` hears of it
            call.early = completion
            return True
        if isinstance(completion.result, Progress):
            self._sampled(handle, call, completion.result)
            return not call.is_forced_to_tell
        if isinstance(completion.result, Forwarded):
            self._chosen(handle, call, completion.result.tokens, completion.result.logprobs, (), 0)
        self._completed(handle, call, completion)
        return True

    # From the guest

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While a call is submitted: what completes meanwhile is told behind it, in the order of time."""
        self._held = []
        try:
            yield
        except BaseException:
            self._tell_held()  # no `issue` will follow
            raise

    def issue(self, handle: int, op: Any, at_s: float) -> None:  # noqa: ANN401 (JSON)
        """Notes a call of the program, which may be with control by now."""
        name = op.get("op") if isinstance(op, dict) else None
        name = name if isinstance(name, str) else "malformed"
        call = self._calls.get(handle) or _Call(op=name, at_s=at_s, last_s=at_s)
        call.op, call.at_s, call.last_s = name, at_s, at_s
        if call.queued is None and not (isinstance(op, dict) and op.get("answer") is False):  # somebody will observe it
            self._calls[handle] = call
        masks = () if call.queued is None else _masks(call.queued, self._vocab_size)
        self._sink(Issued(run=self._run_id, at_s=at_s, handle=handle, op=name, call=op, masks=masks))
        self._tell_held()
        if call.early is not None:
            self.complete(call.early)

    def observe(self, events: str) -> None:
        """Notes the answers that the program takes."""
        for handle, kind, payload in json.loads(events):
            if kind == "part" or (call := self._calls.pop(handle, None)) is None:
                continue
            now_s = self._now_s()
            answer = payload if call.queued is None else None
            self._tell(
                *(Observed, handle, now_s),
                op=call.op,
                wait_s=now_s - call.at_s,
                is_error=kind == "error",
                answer=answer,
            )

    def now_s(self) -> float:
        """Since the run's start."""
        return self._now_s()

    def _now_s(self) -> float:
        return self._clock.now_s() - self._start_s

    def _sampled(self, handle: int, call: _Call, progress: Progress) -> None:
        first = progress.first if isinstance(call.queued, Generate) and call.queued.watch else call.num_tokens
        self._chosen(handle, call, progress.tokens, progress.logprobs, progress.num_allowed, first)

    def _chosen(
        self,
        handle: int,
        call: _Call,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        num_allowed: Sequence[int],
        first: int,
    ) -> None:
        now_s = self._now_s()
        for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            text = self._token_bytes[token].decode(errors="replace") if token < len(self._token_bytes) else ""
            self._tell(
                *(Sampled, handle, now_s),
                index=first + place,
                token=token,
                text=text,
                logprob=logprob,
                wait_s=now_s - call.last_s,
                num_allowed=num_allowed[place] if num_allowed else None,
            )
            call.last_s = now_s
        call.num_tokens = first + len(tokens)

    def _completed(self, handle: int, call: _Call, completion: Completion) -> None:
        now_s = self._now_s()
        self._tell(
            *(Completed, handle, now_s),
            op=call.op,
            wait_s=now_s - call.at_s,
            result=None if completion.result is None else _shown(completion.result),
            error=completion.error,
            inputs=_inputs(call.queued, completion.result),
        )
        if call.queued is not None and not call.queued.answer:
            del self._calls[handle]

    def _tell_held(self) -> None:
        held, self._held = self._held or (), None
        for record in held:
            self._sink(record)

    def _tell(self, record: type[Trace], handle: int, at_s: float, **fields: Any) -> None:  # noqa: ANN401 (its own)
        told = record(run=self._run_id, at_s=at_s, handle=handle, **fields)
        if self._held is None:
            self._sink(told)
        else:
            self._held.append(told)


class _TracedSession:
    """Implements core.control.Session."""

    def __init__(self, session: Session, trace: RunTrace) -> None:
        self._session = session
        self._trace = trace

    def submit(self, call_id: CallId, call: QueueCall) -> None:
        self._session.submit(call_id, self._trace.queue(int(call_id), call))

    def interrupt(self, call_id: CallId) -> None:
        self._session.interrupt(call_id)

    async def receive(self) -> list[Completion]:
        return [one for one in await self._session.receive() if self._trace.complete(one)]

    def when_news(self, tell: Callable[[], None]) -> None:
        self._session.when_news(tell)

    def take(self) -> list[Completion]:
        return [one for one in self._session.take() if self._trace.complete(one)]

    def close(self) -> None:
        self._session.close()


class _TracedGuest:
    """Implements runtime.sandbox.Guest."""

    def __init__(self, guest: Guest, trace: RunTrace) -> None:
        self._guest = guest
        self._trace = trace

    def submit(self, op: str) -> int:
        at_s = self._trace.now_s()
        with self._trace.holding():
            handle = self._guest.submit(op)
        try:
            call = json.loads(op)
        except (ValueError, RecursionError):
            call = None  # the host has refused it
        self._trace.issue(handle, call, at_s)
        return handle

    def log(self, stream: str, line: str) -> None:
        self._guest.log(stream, line)

    def take_events(self) -> str:
        events = self._guest.take_events()
        if events:
            self._trace.observe(events)
        return events

    def set_waker(self, wake: Callable[[], None] | None) -> None:
        self._guest.set_waker(wake)


def _masks(call: QueueCall, vocab_size: int) -> tuple[str, ...]:
    """What of a call is hidden from the model, or left out of what may be chosen."""
    found: list[str] = []
    if isinstance(call, MaskPage):
        found.append(f"hides {call.keep.count(False)} of the page's {len(call.keep)} tokens")
    if isinstance(call, ForwardText) and call.mask is not None:
        found.append(f"attention mask over {len(call.mask)} inputs")
    if isinstance(call, Generate | ForwardText) and call.sampling is not None:
        if (allowed := call.sampling.allowed) is not None:
            found.append(f"{len(allowed)} of {vocab_size} tokens allowed")
        if call.sampling.logit_bias:
            found.append(f"bias on {len(call.sampling.logit_bias)} tokens")
    if isinstance(call, Generate):
        if call.grammar is not None:
            found.append(f"grammar {call.grammar.kind}")
        if call.window is not None:
            found.append(f"sees the last {call.window.size} tokens and the first {call.window.sinks}")
        if call.sampler is not None:
            found.append("a traced sampler chooses")
    return tuple(found)


def _inputs(call: QueueCall | None, result: CallResult | None) -> Inputs | None:
    if not isinstance(call, Generate | ForwardText) or not isinstance(result, Forwarded | Segment):
        return None
    return Inputs(call.kv_len, result.cached_tokens, len(call.tokens) - result.cached_tokens)


def _shown(result: CallResult) -> Any:  # noqa: ANN401 (JSON)
    """A result as JSON, with the number of its distributions in place of what they hold."""
    fields: dict[str, Any] = msgspec.to_builtins(result)
    if "distributions" in fields:
        fields["distributions"] = len(fields["distributions"])
    return fields
