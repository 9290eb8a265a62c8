"""Runs code that a model wrote, in a sandbox of its own where it can only compute. Never in the program itself."""

from dataclasses import dataclass
from typing import Any

from loopwright.sdk.argument_check import checked
from loopwright.sdk.port import current_port


@dataclass(frozen=True, slots=True)
class CodeError:
    """How a piece of code failed. `code` is program_error, limit, deadline or denied; `traceback` shows its own
    lines."""

    type: str
    code: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What came of a piece of code. `stdout` is all that it printed, and ends with a note where that was cut."""

    result: Any
    stdout: str
    error: CodeError | None

    @property
    def is_ok(self) -> bool:
        return self.error is None


@checked
async def run(
    code: str,
    inputs: dict[str, Any] | None = None,
    *,
    memory_mb: int | None = None,
    cpu_seconds: float | None = None,
    seconds: float | None = None,
    max_output_bytes: int | None = None,
) -> CodeResult:
    """Runs Python code, with `inputs` as its variables, and waits for it.

    Its result is the value of its last line, if that is an expression, or else of its variable `result`. It has no
    model, no network, no state and no file, and nothing of this program but `inputs`. What it does wrong is in the
    result's `error`, never raised. Without limits it gets 32 MiB, 5 s of CPU, 10 s and 64 KiB of output, or what this
    program has left of its own, if that is less; asking for more than is left raises LimitExceeded."""
    operation = {
        "op": "run_code",
        "code": code,
        "inputs": inputs or {},
        "memory_mb": memory_mb,
        "cpu_seconds": cpu_seconds,
        "seconds": seconds,
        "max_output_bytes": max_output_bytes,
    }
    answer = await current_port().issue(operation)
    error = answer["error"]
    return CodeResult(
        answer["result"],
        answer["stdout"],
        None
        if error is None
        else CodeError(error["type"], error["code"], error["message"], error.get("traceback", "")),
    )
