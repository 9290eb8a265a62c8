"""A grammar that the program holds itself to: the tokens of the engine's own, and texts that parse."""

import json
from typing import Any

import pytest
from script_rig import emitted, outcome_of

from loopwright.compose.config import RuntimeConfig
from loopwright.runtime.program import read_program
from system_rig import byte_system, in_loop, program_source

OPTIONS: dict[str, Any] = {"runtime": RuntimeConfig(allows_native=True, needs_wasm=False), "num_blocks": 64}
PARAMETERS = read_program(program_source("grammar_in_program"), "x.py").parameters
JSON: str = next(one.default for one in PARAMETERS if one.name == "grammar")
SUMS = r"""
start: sum ";"
sum: term (("+" | "-") term)*
term: factor ("*" factor)*
factor: /[0-9]/ | "(" sum ")" | "x" "^"? /[2-4]/
"""

ENGINE = """
from loopwright import Context, lark
async def main(text: str, grammar: str, max_tokens: int) -> list:
    ctx = Context()
    ctx.append(text)
    turn = await ctx.generate(grammar=lark(grammar), max_tokens=max_tokens)
    return [turn.text, turn.reason]
"""


@pytest.mark.parametrize("grammar", [JSON, SUMS], ids=["json", "sums"])
@pytest.mark.parametrize("seed", range(3))
def test_the_program_and_the_engine_write_the_same_greedily(grammar: str, seed: int) -> None:
    async def scenario() -> None:
        async with byte_system(seed=seed, **OPTIONS) as system:
            arguments = {"text": "Once upon a time", "grammar": grammar, "max_tokens": 40}
            engine = (await system.run(ENGINE, **arguments)).result
            outcome = await outcome_of(system, "grammar_in_program", **arguments)
            assert outcome.result == engine[0]
            (told,) = emitted(outcome)
            assert told["whole"] == (engine[1] != "length")
            assert told["tokens"] == len(outcome.result) > 0

    in_loop(scenario)


def test_a_rule_may_go_on_in_the_next_line_and_what_is_no_rule_is_refused() -> None:
    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            found = set()
            for seed in range(8):
                arguments = {"grammar": 'start: "zz"\n  | "Paris"', "seed": seed, "temperature": 9.0}
                found.add((await outcome_of(system, "grammar_in_program", text="x", **arguments)).result)
            assert found == {"zz", "Paris"}
            failed = await system.run(program_source("grammar_in_program"), text="x", grammar='start: "a"\n"b"')
            assert failed.final.code != "ok"
            assert "is no rule" in failed.final.error.message

    in_loop(scenario)


def test_every_text_that_is_whole_parses_and_draws_differ() -> None:
    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            short = JSON.replace("/[a-z ]/*", "/[a-z ]/?")  # so that some texts come to their end
            texts: dict[str, set[str]] = {short: set(), SUMS: set()}
            for seed in range(16):
                for grammar, found in texts.items():
                    arguments = {"grammar": grammar, "seed": seed, "temperature": 8.0, "max_tokens": 120}
                    outcome = await outcome_of(system, "grammar_in_program", text="x", **arguments)
                    if emitted(outcome)[0]["whole"]:
                        found.add(outcome.result)
            assert all(isinstance(json.loads(text), dict) for text in texts[short])
            for text in texts[SUMS]:
                compile(text.rstrip(";").replace("^", "").replace("x", "x_"), text, "eval")
            assert min(map(len, texts.values())) >= 3

    in_loop(scenario)
