"""Executes a program's source and says, as data, how it ended. Never talks to the host; the standard library only.

The same in the sandbox and natively: the runner inside the sandbox and the native sandbox call it.
"""

import inspect
import json
import linecache
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from loopwright.sdk.errors import LoopwrightError, error_data
from loopwright.sdk.json_fault import why_not_json

MODULE_NAME = "__program__"
MAX_TRACEBACK_CHARS = 30_000
_MAX_MESSAGE_CHARS = 2000
_MAX_TEXT_CHARS = 8000  # of one exception's text in a traceback


def compile_source(source: str, filename: str) -> types.CodeType:
    """The source as a module's code object. Raises SyntaxError and what else the compiler raises."""
    return compile(source, filename, "exec", dont_inherit=True)


def load_main(
    source: str, filename: str, compiled: Callable[[str, str], types.CodeType] = compile_source
) -> Callable[..., Any]:
    """Executes the source as a module of its own and returns its `main`. Raises whatever the source raises.

    `compiled` gives the code object of a source and its filename."""
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = filename
    sys.modules[MODULE_NAME] = module  # dataclasses, typing and pickle look a class's module up there
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compiled(source, filename), module.__dict__)
    main: Callable[..., Any] | None = getattr(module, "main", None)
    if main is None or not callable(main):
        raise TypeError(f"{filename} has no function `main`; add `async def main(...)`")
    return main


async def call_main(main: Callable[..., Any], arguments: str) -> str:
    """`main(**arguments)` and its result as JSON; `arguments` is a JSON object."""
    result = main(**json.loads(arguments))
    if inspect.isawaitable(result):
        result = await result
    try:
        return json.dumps(result, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"main returned something that is not JSON: {why_not_json(result, error)}") from None


def describe_error(error: BaseException, filename: str, *, missing_module_hint: str = "") -> str:
    """The error as JSON {type, message, hint, traceback}, the traceback with the lines of the program only; code,
    field and retryable too when it is one of Loopwright's own. The hint is for an import that was not found."""
    error = sole_cause(error)
    trace = traceback.TracebackException.from_exception(error)
    lines = own_lines(error, filename)
    keep_own_frames(trace, filename)
    text = readable("".join(trace.format()), MAX_TRACEBACK_CHARS)
    if isinstance(error, LoopwrightError):
        data = error_data(error)
        said = {name: readable(str(data[name]), _MAX_MESSAGE_CHARS) for name in ("message", "hint", "field")}
        return json.dumps(data | said | {"traceback": text})
    message = f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
    if lines and not isinstance(error, SyntaxError):  # a SyntaxError's text names file and line by itself
        message += f" ({filename}, line {lines[-1]})"
    hint = missing_module_hint if isinstance(error, ModuleNotFoundError) else ""
    return json.dumps({"type": type(error).__name__, "message": message, "hint": hint, "traceback": text})


def sole_cause(error: BaseException) -> BaseException:
    """What a TaskGroup with one failed task wraps; any other error as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def own_lines(error: BaseException, filename: str) -> list[int]:
    """The program's line numbers on the way to the error, outermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    return [line for frame, line in frames if frame.f_code.co_filename == filename]


def keep_own_frames(trace: traceback.TracebackException, filename: str) -> None:
    """Drops the frames of other files from the trace, its causes and the members of its group."""
    waiting = [trace]
    while waiting:
        one = waiting.pop()
        one.stack[:] = [frame for frame in one.stack if frame.filename == filename]
        one._str = readable(str(one), _MAX_TEXT_CHARS) if one._str is not None else None  # type: ignore[attr-defined]
        related = (one.__cause__, one.__context__, *(one.exceptions or ()))
        waiting += [other for other in related if other is not None]


def first_line(error: BaseException) -> str:
    """The first line of the error's text, cut to a length that fits one line of a log."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (the program's own __str__ may raise anything)
        text = "(its text cannot be shown)"
    return readable(next(iter(text.splitlines()), ""), _MAX_MESSAGE_CHARS)


def readable(text: str, max_chars: int) -> str:
    """The text as it can cross any boundary: half a surrogate pair as its escape, and of a long one the beginning and
    the end, with a note of what is left out between them."""
    if (num_left_out := len(text) - max_chars) > 0:
        half = max_chars // 2
        text = f"{text[:half]} […{num_left_out} characters left out…] {text[-half:]}"
    return text.encode(errors="backslashreplace").decode()
