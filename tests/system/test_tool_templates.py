"""Chat templates that take tools, whole: the model is fed what the template writes, its calls come and are executed,
and their results go back as the template wants them. jinja2 alone, set up as transformers has it, says what that is."""

import json
from collections.abc import Sequence
from typing import Any

import jinja2
import pytest
from tool_templates import CHATML_CALLS, HEADERS

from loopwright.compose.model_parts import model_text
from loopwright.engine.scripted import ScriptedExecutor
from loopwright.text.load_tokenizer import byte_tokenizer
from system_rig import in_loop, make_info, system_over

END_OF_TURN = 259

AGENT = """
from loopwright import *

@tool
async def weather(city: str, days: int = 1) -> dict:
    "Tells the weather."
    return {"city": city, "sky": ["rain"] * days}

@tool
async def noon() -> str:
    "Tells when noon is."
    return "12:00 <|im_end|>"

async def main(options: dict):
    ctx = Context()
    ctx.system("Be brief.")
    ctx.user("Zürich?")
    turn = await ctx.generate(tools=[weather, noon], **options)
    calls = [[one.name, one.arguments] for one in turn.tool_calls]
    for call in turn.tool_calls:
        ctx.tool_result(call, await call())
    answer = await ctx.generate(tools=[weather, noon], **options)
    return {"calls": calls, "prose": turn.prose, "answer": answer.text, "more": len(answer.tool_calls)}
"""

FUNCTIONS = [
    {"name": "weather", "description": "Tells the weather.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
        "required": ["city"], "additionalProperties": False}},
    {"name": "noon", "description": "Tells when noon is.", "parameters": {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False}},
]  # fmt: skip

HERMES_TURN = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "noon", "arguments": {}}\n</tool_call>'
)
LLAMA_TURN = '{"name": "weather", "parameters": {"city": "Zürich", "days": 2}}; {"name": "noon", "parameters": {}}'
CALLS = [["weather", {"city": "Zürich", "days": 2}], ["noon", {}]]
RESULTS = [json.dumps({"city": "Zürich", "sky": ["rain"] * 2}, ensure_ascii=False), "12:00 <|im_end|>"]


def written_by(template: str, messages: list[dict[str, str]]) -> str:
    """What the template writes, as it would for transformers."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    tools = [{"type": "function", "function": one} for one in FUNCTIONS]
    return environment.from_string(template).render(messages=messages, tools=tools, add_generation_prompt=True)


def turns(*texts: str) -> Any:
    """A model that says the texts, one in each turn of the assistant."""

    def next_token(history: Sequence[int]) -> int:
        said = bytes(one for one in history if one < 256)
        script = texts[said.count(b"assistant\n") - 1].encode()
        written = said.rpartition(b"assistant\n")[2]
        return script[len(written)] if len(written) < len(script) else END_OF_TURN

    return next_token


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("template", "turn", "prose"),
    [(CHATML_CALLS, HERMES_TURN, "I look.\n\n"), (HEADERS, LLAMA_TURN, "")],
    ids=["chatml", "headers"],
)
def test_an_agent_talks_as_its_models_template_wants(template: str, turn: str, prose: str, strict: bool) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Zürich?"},
        {"role": "assistant", "content": turn},
        *({"role": "tool", "content": one} for one in RESULTS),
    ]

    async def scenario() -> None:
        engine = ScriptedExecutor(turns(turn, "Rain until noon."))
        tokenizer = byte_tokenizer(template)
        text = model_text(make_info(engine, tokenizer, "byte", has_template=True), tokenizer)
        try:
            async with system_over(engine, text) as system:
                result = (await system.run(AGENT, options={"strict": strict})).result
        finally:
            engine.close()
        assert result == {"calls": CALLS, "prose": prose, "answer": "Rain until noon.", "more": 0}
        fed = [token for batch in engine.batches for row in batch.all_rows for token in row.token_ids]
        controls = {number: name for name, number in tokenizer.controls.items()}
        pieces = [bytes([one]) if one < 256 else controls[one].encode() for one in fed]
        told = b"".join(pieces).decode()
        assert told.startswith(controls[fed[0]] + written_by(template, messages[:2]))
        assert told.startswith(controls[fed[0]] + written_by(template, messages))
        assert fed.count(tokenizer.controls["<|im_start|>"]) == written_by(template, messages).count("<|im_start|>")
        assert "12:00 <|im_end|>" in told
        assert b"<|im_end|>" in bytes(one for one in fed if one < 256)  # the result's is text, and ends no turn

    in_loop(scenario)
