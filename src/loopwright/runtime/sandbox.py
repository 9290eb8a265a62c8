"""The seam between a run and the place where its code executes. Never knows calls. Implemented in `sandboxes`.

The boundary is three coarse calls, strings with JSON inside: submit(op) → handle, wait(timeout) → events, log(line).
Events are a JSON list of [handle, kind, payload] with kind "ok", "error" or "part"; "part" leaves the handle open.
"""

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from loopwright.runtime.budget import Budget
from loopwright.runtime.limits import Limits

Form: TypeAlias = Literal["program", "snippet"]
"""What a source is: a module with `main`, or a piece of code whose value is that of its last line."""


class Guest(Protocol):
    """What the sandbox calls on behalf of the program inside. No method raises: errors go back as events.

    All of it happens on the event loop's thread."""

    def submit(self, op: str) -> int:
        """Takes one call as JSON, returns its handle at once. A malformed op is answered with an error event."""
        ...

    def log(self, stream: str, line: str) -> None:
        """Takes a line that the program logged or printed. `stream` is log, stdout or stderr."""
        ...

    def take_events(self) -> str:
        """All events that have not been taken, as JSON; "" when there are none."""
        ...

    def set_waker(self, wake: Callable[[], None] | None) -> None:
        """`wake` is called, on the loop's thread, when events have come: also inside `submit`, and if some are."""
        ...


class Sandbox(Protocol):
    """A place to execute programs. One per server; many runs at once."""

    name: str
    is_paced: bool
    """Whether a launch holds the event loop up so long that launches take turns with running programs."""

    @property
    def num_live(self) -> int:
        """Programs that are running or waiting."""
        ...

    async def run(
        self,
        source: str,
        filename: str,
        arguments: str,
        guest: Guest,
        limits: Limits,
        budget: Budget | None = None,
        form: Form = "program",
    ) -> str:
        """Executes `main(**arguments)` of the source, or a snippet with the arguments as its variables, and returns the
        result as JSON. What it computes is charged to the budget; without one, to one of its own.

        Raises ProgramError (the program raised: the message is one line, `traceback` shows the program's own lines),
        LimitExceeded (memory, CPU), and what cancelling the task raises. Wall time is the caller's to limit: it
        cancels the task, and the sandbox drops the program, wherever it is, and leaves nothing behind."""
        ...

    async def close(self) -> None: ...
