"""Child programs: runs of their own that this one starts, waits for, listens to and cancels. Never knows what they do.

Used by programs. The server sees to it that no child outlives its parent or may do more than it.
"""

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.context import Context
from loopwright.sdk.errors import BadRequest, LoopwrightError, error_from_data
from loopwright.sdk.handover import hand_over, parent_context, take_back
from loopwright.sdk.port import Stream, current_port
from loopwright.sdk.run_state import run_state

__all__ = ["Child", "ChildFailed", "parent_context", "spawn"]


class ChildFailed(LoopwrightError):
    """A child ended with `code`, and with `error` if it was one of Loopwright's own."""

    def __init__(self, message: str, *, run_id: str = "", error: LoopwrightError | None = None, **told: Any) -> None:  # noqa: ANN401 (fields of the root)
        super().__init__(message, **told)
        self.run_id = run_id
        self.error = error
        if error is not None:
            self.code = error.code


@checked
class Child:
    """A run that this one has spawned."""

    def __init__(self, run_id: str, stream: Stream) -> None:
        self.run_id = run_id
        self._stream = stream
        self._port = current_port()
        self._outcome: dict[str, Any] | None = None

    async def wait(self) -> Any:  # noqa: ANN401 (JSON)
        """What its `main` returned. Raises ChildFailed if it ended in another way, with its code and its error.

        Giving up waiting leaves the child running; it can be waited for again."""
        if self._outcome is None:
            await self._stream.final()
            self._outcome = self._outcome or await self._stream.next_part()
        outcome = self._outcome
        if outcome["code"] == "ok":
            return outcome["result"]
        data = outcome["error"]
        raise ChildFailed(
            f"the child {self.run_id} ended with {outcome['code']}: {data['message']}",
            run_id=self.run_id,
            error=_error(outcome["code"], data),
            hint=data.get("hint", ""),
            field=data.get("field", ""),
            retryable=data.get("retryable", False),
        )

    def cancel(self) -> None:
        """Ends it, and all that it has spawned; `wait` then raises ChildFailed with the code cancelled."""
        self._port.post({"op": "cancel_child", "run": self.run_id})

    async def events(self, after: int = -1) -> AsyncIterator[dict[str, Any]]:
        """Its events with seq > after, {type, seq, …}, as they come: what it emits, its text, its log. The last one, of
        type done, says how it ended."""
        stream = self._port.stream({"op": "child_events", "run": self.run_id, "after": after})
        try:
            while (part := await stream.next_part()) is not None:
                yield part["event"]
            await stream.final()
        finally:
            if not self._port.is_closed:
                stream.interrupt()


@checked
async def spawn(program: str | Callable[..., Any], /, *, context: Context | None = None, **arguments: Any) -> Child:  # noqa: ANN401 (JSON)
    """Starts a child run: of a deployed program by name, of an async function of this file, or of a program's text.

    With `context` the child gets a fork of it, from `parent_context()`: the same tokens, view and KV, with nothing run
    again. Raises PermissionDenied unless `permissions.children` lists it (the name, "@self", "@source"), LimitExceeded
    beyond `limits.max_children`, NotFound, BadRequest for arguments that do not fit."""
    operation = {"op": "spawn", **_what(program), "arguments": arguments}
    export, handed = "", {"model": ""}
    if context is not None:
        handed = await hand_over(context, f"{(await run_state().description())['run']}/{run_state().take_names()}")
        operation["context"], export = handed, handed["export"]
    stream = current_port().stream(operation)
    try:
        if (part := await stream.next_part()) is None:
            await stream.final()
    except BaseException:
        stream.interrupt()
        if export:
            take_back(export, handed["model"])
        raise
    assert part is not None, "a child that was admitted has a run id"
    if export:
        stream.when_ended(lambda _: take_back(export, handed["model"]))
    return Child(part["run"], stream)


def _what(program: str | Callable[..., Any]) -> dict[str, str]:
    if isinstance(program, str):
        return {"source": program} if "\n" in program else {"program": program}
    if not inspect.iscoroutinefunction(program) or program.__qualname__ != program.__name__:
        raise BadRequest(f"{program!r} is no async function of the file's top level", field="program")
    return {"entry": program.__name__}


def _error(code: str, data: dict[str, Any]) -> LoopwrightError:
    error = error_from_data(data)
    error.code = code
    return error
