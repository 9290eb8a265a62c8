"""The call that runs a piece of code in a sandbox of its own. Never executes one. Part of the union in `host_calls`."""

from typing import Annotated, Any

from msgspec import Meta, field

from loopwright.core.call_base import HostCall

MAX_CODE_CHARS = 1 << 20


class RunCode(HostCall, frozen=True, kw_only=True, tag="run_code"):
    """Runs Python code in a sandbox beside the program's, which may do nothing but compute: {result, stdout, error}.

    The values of `inputs` are its variables. `result` is the value of its last line, if that is an expression, or else
    of its variable `result`. `error` is an error as any call's, of what the code did; then `result` is null. Limits
    that are not given are the least of a default and what the program has left itself; more than that is
    LimitExceeded."""

    code: Annotated[str, Meta(max_length=MAX_CODE_CHARS)]
    inputs: dict[str, Any] = field(default_factory=dict)
    memory_mb: Annotated[int, Meta(ge=1)] | None = None
    cpu_seconds: Annotated[float, Meta(gt=0)] | None = None
    seconds: Annotated[float, Meta(gt=0)] | None = None
    max_output_bytes: Annotated[int, Meta(ge=1)] | None = None  # of what it prints, beyond which it is cut, and returns
