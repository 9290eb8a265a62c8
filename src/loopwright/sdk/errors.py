"""The errors a program can catch. Knows nothing of how they arise. Raised by the port from what the host sends.

The names and codes are those of the server's own tree; a test keeps the two the same.
"""

from collections.abc import Iterator
from typing import Any


class LoopwrightError(Exception):
    """The root. `code` groups errors; `hint` says what to do; `field` names the parameter at fault."""

    code = "internal"

    def __init__(self, message: str, *, hint: str = "", field: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.retryable = retryable


class BadRequest(LoopwrightError):
    code = "bad_request"


class ContextTooLong(BadRequest):
    pass


class ModelLacksTrait(BadRequest):
    pass


class NotFound(BadRequest):
    pass


class Poisoned(BadRequest):
    pass


class ProgramRejected(LoopwrightError):
    code = "program_error"


class ProgramError(LoopwrightError):
    code = "program_error"


class ToolFailed(LoopwrightError):
    code = "program_error"


class LimitExceeded(LoopwrightError):
    code = "limit"


class OutOfPages(LimitExceeded):
    pass


class DeadlineExceeded(LoopwrightError):
    code = "deadline"


class PermissionDenied(LoopwrightError):
    code = "denied"


class Cancelled(LoopwrightError):
    code = "cancelled"


class Overloaded(LoopwrightError):
    code = "overloaded"


class Unavailable(LoopwrightError):
    code = "internal"


class InternalError(LoopwrightError):
    code = "internal"


class Untraceable(LoopwrightError):
    """A sampler does something that only a Python loop can do: the message says in which line, and what."""

    code = "program_error"


class BoundaryHit(LoopwrightError):
    """A bound that the program itself set was passed: for instance, the mass outside a truncated distribution."""

    code = "program_error"


def error_types(root: type[LoopwrightError] = LoopwrightError) -> Iterator[type[LoopwrightError]]:
    """Every class of the tree, the root first."""
    yield root
    for child in root.__subclasses__():
        yield from error_types(child)


def error_from_data(data: Any) -> LoopwrightError:  # noqa: ANN401 (JSON)
    """The exception for `{type, code, message, hint, field, retryable}`; an unknown type becomes the root, and what
    describes no error an InternalError."""
    if not isinstance(data, dict) or not isinstance(data.get("type"), str) or "message" not in data:
        return InternalError(f"the host sent an error that cannot be read: {str(data)[:200]}")
    kind = {one.__name__: one for one in error_types()}.get(data["type"], LoopwrightError)
    return kind(
        data["message"],
        hint=data.get("hint", ""),
        field=data.get("field", ""),
        retryable=data.get("retryable", False),
    )


def error_data(error: LoopwrightError) -> dict[str, Any]:
    """An exception as data, to leave the sandbox with."""
    return {
        "type": type(error).__name__,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "field": error.field,
        "retryable": error.retryable,
    }
