"""The one error tree. Never formats for HTTP or a terminal. Raised by every layer, turned into data at its edge.

LoopwrightError            code           what it means
├── BadRequest             bad_request    the caller sent something that cannot be honoured; names the field
│   ├── ContextTooLong     bad_request    more tokens than the model can attend to
│   ├── ModelLacksTrait    bad_request    the model cannot do this at all
│   └── NotFound           bad_request    no such run, program, model, page, queue …
├── ProgramRejected        program_error  the file is not a program: syntax, signature, metadata
├── ProgramError           program_error  the program raised, or trapped
├── ToolFailed             program_error  a tool of the server said that it failed
├── LimitExceeded          limit          one of the run's own limits was reached
│   └── OutOfPages         limit          no KV page is left for this run, or in the pool
├── DeadlineExceeded       deadline       the run's wall time is over
├── PermissionDenied       denied         the program's metadata does not list what it tried
│   └── Unauthenticated    denied         the request has no key, or none of this server's
├── Cancelled              cancelled      somebody asked for it to end
├── Poisoned               bad_request    an earlier call of the same queue failed
├── Overloaded             overloaded     the server has no room now; try again
├── Unavailable            internal       a part of the machine outside the program failed: file, disk, port, network
└── InternalError          internal       a fault of ours
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

Code = Literal[
    "ok", "cancelled", "deadline", "limit", "denied", "program_error", "bad_request", "overloaded", "internal",
    "unknown_effect",
]  # fmt: skip


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as data: what crosses processes, the sandbox's boundary and HTTP."""

    type: str
    code: Code
    message: str
    hint: str = ""
    field: str = ""
    retryable: bool = False
    traceback: str = ""


class LoopwrightError(Exception):
    """The root. `message` has the value and the limit; `hint` says what to do; `field` names the parameter at fault."""

    code: ClassVar[Code] = "internal"
    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "", field: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.traceback = traceback

    def info(self) -> ErrorInfo:
        """This error as data."""
        return ErrorInfo(
            type=type(self).__name__,
            code=self.code,
            message=self.message,
            hint=self.hint,
            field=self.field,
            retryable=self.retryable,
            traceback=self.traceback,
        )


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
    retryable = True


class DeadlineExceeded(LoopwrightError):
    code = "deadline"


class PermissionDenied(LoopwrightError):
    code = "denied"


class Unauthenticated(PermissionDenied):
    pass


class Cancelled(LoopwrightError):
    code = "cancelled"


class Overloaded(LoopwrightError):
    code = "overloaded"
    retryable = True


class Unavailable(LoopwrightError):
    code = "internal"
    retryable = True


class InternalError(LoopwrightError):
    code = "internal"


def error_types(root: type[LoopwrightError] = LoopwrightError) -> Iterator[type[LoopwrightError]]:
    """Every class of the tree, the root first."""
    yield root
    for child in root.__subclasses__():
        yield from error_types(child)


def from_info(info: ErrorInfo) -> LoopwrightError:
    """The exception that `info` describes; an unknown type becomes an InternalError that says so."""
    kind = {one.__name__: one for one in error_types()}.get(info.type)
    if kind is None:
        return InternalError(f"{info.type}: {info.message}", hint=info.hint, traceback=info.traceback)
    return kind(info.message, hint=info.hint, field=info.field, traceback=info.traceback)
