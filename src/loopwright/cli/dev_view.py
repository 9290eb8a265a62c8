"""Shows a run on the terminal, call by call and token by token. Never starts one. Used by `dev`."""

import json
import time
from collections.abc import Sequence

from rich.console import Console

from loopwright.cli.findings import line_of
from loopwright.core.events import Emit, Event, Finished, Log, Started, Text, Tokens
from loopwright.runtime.program_check import Finding
from loopwright.runtime.tracing import Completed, Issued, Observed, Sampled, Trace

SEGMENTS = ("segment", "generate")


class DevView:
    """What `dev` says, on stdout."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
        self._text: list[str] = []

    def begins(self) -> None:
        self._line(f"── {self._path}, {time.strftime('%H:%M:%S')} ──", "bold")

    def waits(self) -> None:
        self._line(f"waits for the next save of {self._path} (interrupt to stop)", "dim")

    def cannot_read(self, why: str) -> None:
        self._line(f"cannot read {self._path}: {why}", "red")

    def findings(self, found: Sequence[Finding]) -> None:
        for one in found:
            self._line(line_of(self._path, one), "red")

    def event(self, event: Event) -> None:
        match event:
            case Text():
                self._text.append(event.text)  # token by token it is in the trace; as a whole it is read better
            case Log():
                self._line(f"[{event.stream}] {event.line}", "yellow")
            case Emit():
                self._line(f"[emit] {json.dumps(event.value, ensure_ascii=False)}", "yellow")
            case Finished():
                self._end(event)
            case Started() | Tokens():
                pass

    def trace(self, trace: Trace) -> None:
        match trace:
            case Issued(op=op) if op in SEGMENTS:
                self._call(trace, " · ".join([f"{op} begins", *trace.masks]))
            case Issued() if trace.masks:
                self._call(trace, " · ".join([trace.op, *trace.masks]))
            case Sampled():
                self._line(_token_line(trace))
            case Completed() if trace.inputs is not None or trace.op in SEGMENTS:
                self._call(trace, _completion(trace))
            case Observed(answer=answer) if trace.is_error or answer is not None or trace.op not in SEGMENTS:
                said = f": {answer['message']}" if trace.is_error and isinstance(answer, dict) else ""
                self._call(trace, f"{trace.op}{said} · waited {_ms(trace.wait_s)}")
            case _:
                pass

    def _end(self, event: Finished) -> None:
        if self._text:
            self._line("".join(self._text).rstrip("\n"), "cyan")
            self._text.clear()
        if event.error is None:
            self._line(f"ok: {json.dumps(event.result, ensure_ascii=False)}", "green")
        else:
            hint = f" ({event.error.hint})" if event.error.hint else ""
            self._line(f"{event.error.traceback}{event.code}: {event.error.message}{hint}", "red")

    def _call(self, trace: Trace, said: str) -> None:
        self._line(f"{_ms(trace.at_s):>11}  #{trace.handle} {said}", "dim")

    def _line(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style)


def _token_line(one: Sampled) -> str:
    allowed = {None: "", 1: " · forced"}.get(one.num_allowed, f" · one of {one.num_allowed} allowed")
    return f"{one.index:>17}  {one.text!r:16} {one.token:>7} {one.logprob:8.2f}  +{_ms(one.wait_s)}{allowed}"


def _completion(one: Completed) -> str:
    said = [f"{one.op} ends"]
    if one.error is not None:
        said.append(f"{one.error.code}: {one.error.message}")
    if (inputs := one.inputs) is not None:
        said.append(
            f"in: {inputs.num_in_context} tokens of the context, {inputs.num_cached} cached, {inputs.num_run} run"
        )
    if isinstance(result := one.result, dict):
        said.append(
            f"out: {len(result.get('tokens', ()))} tokens" + (f", {result['reason']}" if "reason" in result else "")
        )
        said.append(f"KV of {result.get('kv_len', 0)} tokens in {result.get('num_pages', 0)} pages")
    return " · ".join([*said, f"waited {_ms(one.wait_s)}"])


def _ms(seconds_s: float) -> str:
    return f"{seconds_s * 1000:.1f} ms"
