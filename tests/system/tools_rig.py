"""A served system over a scripted model that says given texts, one a turn, for tests of chats with tools."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from http_rig import Served, served

from loopwright.compose.model_parts import model_text
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.text.load_tokenizer import byte_tokenizer
from loopwright.text.tokenizer import Tokenizer
from system_rig import CHATML, make_info, system_over

END_OF_TURN = 259
ASK: list[Any] = [{"role": "user", "content": "Zürich?"}]


def function(name: str, strict: bool | None = None, **properties: Any) -> Any:
    """A tool as a request has it; its properties are all required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    more = {} if strict is None else {"strict": strict}
    return {
        "type": "function",
        "function": {"name": name, "description": f"It is {name}.", "parameters": schema, **more},
    }


WEATHER = function("weather", city={"type": "string"}, days={"type": "integer"})
NOON = function("noon")
TOOLS = [WEATHER, NOON]


def turns(*texts: str, opening: str = "assistant\n") -> Any:
    """A model that says the texts, one in each turn of the assistant."""
    scripts = [ids_of(one) for one in texts]

    def next_token(history: Sequence[int]) -> int:
        said = bytes(min(one, 255) for one in history)  # no text has 255
        script = scripts[min(said.count(opening.encode()), len(scripts)) - 1]
        written = len(said.rpartition(opening.encode())[2])
        return script[written] if written < len(script) else END_OF_TURN

    return next_token


MARKS = {"[TOOL_CALLS]": 260, "[CALL_ID]": 261, "[ARGS]": 262}


def ids_of(text: str) -> list[int]:
    """Bytes, and MARKS written with two brackets, as control tokens."""
    parts = re.split(r"\[(\[[A-Z_]+\])\]", text)
    return [one for number, part in enumerate(parts) for one in ([MARKS[part]] if number % 2 else part.encode())]


def marked_tokenizer(template: str) -> Tokenizer:
    """The byte tokenizer, with MARKS among its control tokens."""
    plain = byte_tokenizer(template)
    return replace(plain, token_bytes=(*plain.token_bytes, *(b"" for _ in MARKS)), controls={**plain.controls, **MARKS})


@asynccontextmanager
async def saying(
    *texts: str, template: str = CHATML, opening: str = "assistant\n", has_marks: bool = False
) -> AsyncIterator[Served]:
    """Use `client.system.executor` for what ran."""
    tokenizer = marked_tokenizer(template) if has_marks else byte_tokenizer(template)
    executor = ScriptedExecutor(turns(*texts, opening=opening), vocab_size=tokenizer.vocab_size)
    text = model_text(make_info(executor, tokenizer, "byte", has_template=True), tokenizer)
    try:
        async with system_over(executor, text) as system, served(system) as client:
            yield client
    finally:
        executor.close()


def fed(client: Served) -> str:
    """What ran, control tokens written out."""
    executor, tokenizer = client.system.executor, client.system.text.tokenizer
    assert isinstance(executor, ScriptedExecutor)
    tokens = [token for batch in executor.batches for row in batch.all_rows for token in row.token_ids]
    names = {number: name for name, number in tokenizer.controls.items()}
    return b"".join(bytes([one]) if one < 256 else names[one].encode() for one in tokens).decode(errors="replace")


def hermes(name: str, **arguments: Any) -> str:
    """A call as a model of that family writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
