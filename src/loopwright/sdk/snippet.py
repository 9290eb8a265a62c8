"""Executes a piece of generated code: what an instance does that `sandbox.run` starts. Never runs in a program's own.

The runner calls `main` as the main of any program; the code's lines are those that a traceback shows.
"""

import ast
import json
import linecache
from typing import Any

FILENAME = "code.py"


async def main(code: str, inputs: dict[str, Any]) -> Any:  # noqa: ANN401 (JSON)
    """The value of the last line if that is an expression, or of the variable `result`. Raises what the code raises."""
    linecache.cache[FILENAME] = (len(code), None, code.splitlines(keepends=True), FILENAME)
    tree = ast.parse(code, FILENAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    variables: dict[str, Any] = {"__name__": "__main__", **inputs}
    exec(compile(tree, FILENAME, "exec", dont_inherit=True), variables)
    if isinstance(last, ast.Expr):
        expression = ast.Expression(last.value)
        result = eval(compile(expression, FILENAME, "eval", dont_inherit=True), variables)
    else:
        result = variables.get("result")
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"the code's result is not JSON: {error}") from None
    return result
