"""How a run ended, from what its guest said. Trusts nothing that comes from a guest. Used by every sandbox."""

import msgspec

from loopwright.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ErrorInfo,
    InternalError,
    LimitExceeded,
    LoopwrightError,
    Overloaded,
    ProgramError,
    Unavailable,
    error_types,
    from_info,
)
from loopwright.core.raise_hint import raise_hint
from loopwright.runtime.limits import Limits

_HOST_ONLY = (LoopwrightError, InternalError, Unavailable, Cancelled, DeadlineExceeded, Overloaded)
_CLAIMABLE = {kind.__name__ for kind in error_types() if kind not in _HOST_ONLY}
"""Errors of ours that a guest may end with. It could not have met the others, or they are the host's to say."""

_MAX_MESSAGE_CHARS = 4000
_MAX_TRACEBACK_CHARS = 40_000


_FILE_ERRORS = ("FileNotFoundError", "NotADirectoryError")
_NO_FILES = "a program has files of its own when its metadata says so: limits = { max_file_bytes = 1_000_000 }"


class _GuestError(msgspec.Struct):
    type: str
    message: str
    traceback: str = ""
    code: str = ""
    hint: str = ""
    field: str = ""
    retryable: bool = False


def checked_result(result: str, limits: Limits) -> str:
    """The guest's result when it is JSON. Raises ProgramError when it is not, LimitExceeded when it is too long to be
    looked at."""
    if len(result) > limits.max_output_bytes:
        raise LimitExceeded(
            f"the program's result has {len(result)} characters; the limit of its output is {limits.max_output_bytes}",
            hint=raise_hint("max_output_bytes", limits.max_output_bytes, "return less"),
            field="max_output_bytes",
        )
    try:
        msgspec.json.decode(result)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProgramError(f"the program's result is not JSON: {error}") from None
    return result


def error_from_guest(text: str, limits: Limits) -> LoopwrightError:
    """The error that a guest ended with, from its JSON {type, message, traceback, …}."""
    if len(text) > limits.max_message_bytes:
        return ProgramError(f"the program ended with an error of {len(text)} characters, which nobody reads")
    try:
        said = msgspec.json.decode(text, type=_GuestError)
    except (msgspec.DecodeError, RecursionError):
        return ProgramError("the program ended with an error that cannot be read")
    if said.type == "MemoryError":
        return out_of_memory(limits, said.traceback[-_MAX_TRACEBACK_CHARS:])
    is_ours = said.code != "" and said.type in _CLAIMABLE
    return from_info(
        ErrorInfo(
            type=said.type if is_ours else "ProgramError",
            code="program_error",  # the type decides
            message=said.message[:_MAX_MESSAGE_CHARS],
            hint=_NO_FILES
            if said.type in _FILE_ERRORS and not limits.max_file_bytes
            else said.hint[:_MAX_MESSAGE_CHARS],
            field=said.field[:_MAX_MESSAGE_CHARS],
            traceback=said.traceback[-_MAX_TRACEBACK_CHARS:],
        )
    )


def out_of_memory(limits: Limits, traceback: str = "") -> LimitExceeded:
    """The run reached its memory limit."""
    return LimitExceeded(
        f"the program ran out of memory; its limit is {limits.memory_mb} MiB",
        hint=raise_hint("memory_mb", limits.memory_mb, "keep less in memory"),
        field="memory_mb",
        traceback=traceback,
    )
