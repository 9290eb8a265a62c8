"""Executes a piece of generated code: what an instance does that `sandbox.run` starts. Never runs in a program's own.

The runner loads it as it loads a program; the code's lines are those that a traceback shows.
"""

import ast
import json
import linecache
import types
from collections.abc import Callable
from typing import Any

from loopwright.sdk.json_fault import why_not_json

_VALUE = "value of the last line"  # no name that code can write, so that none can be in its way


def compile_snippet(code: str, filename: str) -> types.CodeType:
    """As a module, which leaves the value of its last line under a name of ours if that is an expression."""
    tree = ast.parse(code, filename)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        target = ast.copy_location(ast.Name(_VALUE, ast.Store()), last)
        tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
    return compile(tree, filename, "exec", dont_inherit=True)


def load_snippet(
    code: str, filename: str, compiled: Callable[[str, str], types.CodeType] = compile_snippet
) -> Callable[..., Any]:
    """What executes the code with its inputs, given by name. Raises what the compiler raises."""
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    module = compiled(code, filename)

    async def main(**inputs: Any) -> Any:  # noqa: ANN401 (JSON)
        """The value of the last line if it is an expression, or of `result`. Raises what the code raises."""
        variables: dict[str, Any] = {"__name__": "__main__", **inputs}
        exec(module, variables)
        result = variables[_VALUE] if _VALUE in variables else variables.get("result")
        try:
            json.dumps(result, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the code's result is not JSON: {why_not_json(result, error)}") from None
        return result

    return main
