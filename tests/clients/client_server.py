"""A whole server over a scripted model, as a process of its own, for clients that live in other environments.

The model does what it is told, so that every answer is known (`plan`). Where a grammar forbids what it would say, it
closes what is open as soon as it may: any form comes to an end. The first line of standard output is the port.
"""

import argparse
import ast
import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from tool_templates import CHATML_CALLS

from loopwright.compose.model_parts import model_text
from loopwright.core.ids import TenantId
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.server.app import create_app
from loopwright.server.http import serve
from loopwright.server.identity import by_key, everybody
from loopwright.text.load_tokenizer import byte_tokenizer
from system_rig import make_info, system_over

END_OF_TURN = 259
MAX_CONTEXT, NUM_BLOCKS = 32768, 8192
MODEL, KEY = "scripted", "the-right-key"
OPENING = b"assistant\n"

PLAIN = "Hello there, this is a scripted model."


def plan(prompt: str) -> str:
    """What the model says to a prompt: the last turn of the user asks for it."""
    turns = prompt.split("user\n")
    asked = turns[-1].rpartition("\nassistant\n")[0] or turns[-1]
    if "<tool_response>" in asked:
        result = asked.rpartition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
        return f"The tool says {result}."
    tools = tools_of(prompt)
    if calls := [call for name, arguments in tools.items() if (call := _call(name, arguments, asked))]:
        return "\n".join(calls)
    for name, arguments in tools.items():
        if name.rpartition("_")[2] in asked.split():  # of get_weather: the weather in Oslo
            named = re.findall(r"'(.+?)'", asked) or re.findall(r"[A-Z]\w+", asked)[-1:]
            return _written(name, dict.fromkeys(arguments, named[0]))
    if found := re.search(r"JSON with (.*) keys", asked):
        return json.dumps({name: "x" for name in re.findall(r"'(\w+)'", found[1])})
    if found := re.search(r"Count to (\d+)", asked):
        return " ".join(str(number) for number in range(1, int(found[1]) + 1))
    if found := re.search(r"Say: (.*)", asked):
        return found[1]
    return PLAIN


def tools_of(prompt: str) -> dict[str, list[str]]:
    """The names of the arguments of each tool that the prompt declares."""
    found = {}
    for line in re.findall(r"^\{.*\}$", prompt.partition("<tools>\n")[2].partition("\n</tools>")[0], re.MULTILINE):
        function = json.loads(line)
        function = function.get("function", function)
        found[function["name"]] = [*function.get("parameters", {}).get("properties", {})]
    return found


def _call(name: str, arguments: list[str], asked: str) -> str | None:
    """The call that the user wrote out, as name(1, 'x'), if there is one."""
    if (found := re.search(rf"\b{re.escape(name)}\((.*?)\)", asked)) is None:
        return None
    return _written(name, dict(zip(arguments, ast.literal_eval(f"[{found[1]}]"), strict=False)))


def _written(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def next_token(history: tuple[int, ...]) -> int:
    """The token after the history."""
    said = bytes(token for token in history if token < 256)
    prompt, _, written = said.rpartition(OPENING)
    whole = plan(prompt.decode(errors="replace")).encode()
    if whole.startswith(written):
        return whole[len(written)] if len(written) < len(whole) else END_OF_TURN
    return closing(written)


def closing(written: bytes) -> int:
    """What ends the JSON soonest whose beginning is written; where it may not stand, the lowest token that may does."""
    open_ones, is_string, is_escaped, length = [], False, False, 0
    for one in written.decode(errors="ignore"):
        if is_string:
            is_string, is_escaped = is_escaped or one != '"', one == "\\" and not is_escaped
            length += 1
        elif one == '"':
            is_string, length = True, 0
        elif one in "{[":
            open_ones.append("}" if one == "{" else "]")
        elif one in "}]" and open_ones:
            open_ones.pop()
    if is_string:
        return ord('"') if length else ord("x")
    return ord(open_ones[-1]) if open_ones else END_OF_TURN


async def run(arguments: argparse.Namespace) -> None:
    executor = ScriptedExecutor(next_token, max_context=arguments.max_context, num_blocks=NUM_BLOCKS)
    tokenizer = byte_tokenizer(CHATML_CALLS)
    text = model_text(make_info(executor, tokenizer, MODEL, has_template=True), tokenizer)
    tenant_of: Any = by_key({KEY: TenantId("tests")}) if arguments.with_keys else everybody
    try:
        async with system_over(executor, text) as system:
            app = create_app(system.launcher, tenant_of=tenant_of)
            await serve(app, "127.0.0.1", 0, tell, grace_s=arguments.grace_s)
    finally:
        executor.close()


def tell(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with-keys", action="store_true")
    parser.add_argument("--max-context", type=int, default=MAX_CONTEXT)
    parser.add_argument("--grace-s", type=int, default=1, help="how long requests may go on after the word to stop")
    asyncio.run(run(parser.parse_args()))
