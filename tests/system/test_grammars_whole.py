"""Grammars through the whole system: a program's constructors, text as it streams, forks, and a real tokenizer."""

import json
import re

import pytest

from loopwright.core.calls import Sampling
from loopwright.core.grammars import Grammar
from loopwright.grammar.pool import GrammarPool
from system_rig import SmolLM2, WatchedExecutor, byte_system, in_loop, system_over

SCHEMA = {
    "type": "object",
    "properties": {
        "capital": {"type": "string", "maxLength": 20},
        "population_millions": {"type": "integer", "minimum": 0, "maximum": 2000},
        "is_island": {"type": "boolean"},
    },
    "required": ["capital", "population_millions", "is_island"],
    "additionalProperties": False,
}

EVERY_KIND = """
from loopwright import Context, choice, json_object, json_schema, lark, regex
async def main(schema: dict):
    texts = []
    for grammar in (json_schema(schema), regex("[a-c]{3}-[0-9]{2}"), choice(["yes", "no"]),
                    lark('start: "<" /[a-z]{2}/ ">"'), json_schema('{"const": [1, 2]}')):
        ctx = Context(seed=3)
        ctx.user("Go on.")
        turn = await ctx.generate(grammar=grammar, temperature=1.0, max_tokens=120, emit=True)
        texts.append([turn.text, turn.reason])
    return texts
"""

GO_ON = """
import asyncio
from loopwright import Context, json_schema
async def main(schema: dict):
    ctx = Context(seed=1)
    ctx.append("x = ")
    forks = [await ctx.fork() for _ in range(3)]
    turns = await asyncio.gather(*(fork.generate(grammar=json_schema(schema), seed=n, temperature=1.0, max_tokens=120)
                                   for n, fork in enumerate(forks)))
    after = [await fork.generate(max_tokens=4) for fork in forks]
    fresh = Context(seed=1)
    fresh.append("x = ")
    fresh.accept(turns[0].tokens)
    again = await fresh.generate(max_tokens=4)
    return [[turn.text for turn in turns], after[0].tokens == again.tokens]
"""

REFUSED = """
from loopwright import BadRequest, Context, json_schema
async def main():
    ctx = Context()
    ctx.append("x")
    try:
        await ctx.generate(grammar=json_schema({"type": "object", "properties": {"a": {"type": "strin"}}}))
    except BadRequest as error:
        turn = await ctx.generate(max_tokens=2, ignore_eos=True)
        return [error.field, len(turn.tokens)]
"""

STREAMED = """
from loopwright import Context, json_schema
async def main(schema: dict):
    ctx = Context(seed=5)
    ctx.append("x = ")
    stream = ctx.stream(grammar=json_schema(schema), temperature=1.0, max_tokens=120)
    chunks = [chunk async for chunk in stream]
    joined, tokens = "".join(chunk.text for chunk in chunks), [token for chunk in chunks for token in chunk.tokens]
    return [joined, tokens, stream.turn.text, stream.turn.tokens]
"""


def test_every_constructor_makes_a_grammar_that_the_text_keeps_to() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await system.run(EVERY_KIND, schema=SCHEMA)
            (schema, reason), *others = outcome.result
            assert reason == "grammar_end"
            assert list(json.loads(schema)) == list(SCHEMA["properties"])  # type: ignore[call-overload]
            patterns = ["[a-c]{3}-[0-9]{2}", "yes|no", "<[a-z]{2}>", re.escape("[1, 2]")]
            for (text, reason), pattern in zip(others, patterns, strict=True):
                assert re.fullmatch(pattern, text)
                assert reason == "grammar_end"
            assert outcome.text == schema + "".join(text for text, _ in others)

    in_loop(scenario)


def test_forks_follow_grammars_of_their_own_and_a_context_goes_on_after_one() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            texts, is_same = (await system.run(GO_ON, schema=SCHEMA)).result
            assert len(set(texts)) == 3
            assert all(json.loads(text) for text in texts)
            assert is_same

    in_loop(scenario)


def test_a_refused_grammar_is_an_error_to_catch_and_the_context_goes_on() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            assert (await system.run(REFUSED)).result == ["grammar.source#/properties/a/type", 2]

    in_loop(scenario)


def test_chunks_of_a_text_with_forced_tokens_join_to_the_text() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            joined, tokens, text, all_tokens = (await system.run(STREAMED, schema=SCHEMA)).result
            assert (joined, tokens) == (text, all_tokens)

    in_loop(scenario)


@pytest.mark.wasm
def test_the_sandbox_has_the_same_constructors() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            native, wasm = [
                (await system.run(EVERY_KIND, sandbox, schema=SCHEMA)).result for sandbox in ("native", "wasm")
            ]
            assert native == wasm

    in_loop(scenario)


def test_what_is_no_grammar_is_refused_by_name() -> None:
    async def scenario() -> None:
        source = (
            'from loopwright import Context\nasync def main():\n    await Context().generate(grammar={"type": "null"})'
        )
        async with byte_system() as system:
            final = (await system.run(source)).final
            assert final.error is not None
            assert (final.code, final.error.field) == ("bad_request", "grammar")
            assert final.error.message == "grammar: {'type': 'null'} is not Grammar or None"

    in_loop(scenario)


@pytest.mark.model
def test_the_real_model_writes_json_that_equals_the_oracle_with_forced_tokens_in_few_steps(smollm2: SmolLM2) -> None:
    prompt = "Tokyo is the capital of Japan. As JSON: "
    properties = {"capital": {"type": "string", "maxLength": 20}, "is_island_nation": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    grammar = Grammar("json_schema", json.dumps(schema))
    tokenizer = smollm2.text.tokenizer
    ids = tokenizer.encode(prompt)
    pool = GrammarPool(tokenizer, smollm2.text.info.vocab_size)
    state = pool.compile(grammar).result().start()
    expected = smollm2.oracle.generate(ids, Sampling(), 48, stop_tokens=tokenizer.eos_ids, grammar=state)
    pool.close()
    source = """
from loopwright import Context, json_schema
async def main(ids: list, schema: dict):
    ctx = Context()
    ctx.append(ids)
    turn = await ctx.generate(grammar=json_schema(schema), max_tokens=48)
    return [turn.text, turn.tokens, turn.logprobs, turn.reason]
"""

    async def scenario() -> None:
        engine = WatchedExecutor(smollm2.executor)
        async with system_over(engine, smollm2.text) as system:
            text, tokens, logprobs, reason = (await system.run(source, ids=ids, schema=schema)).result
            assert json.loads(text)["capital"].startswith("Tokyo")
            assert tuple(tokens) == expected.tokens
            assert logprobs == pytest.approx(expected.logprobs, abs=1e-3)
            assert reason == "grammar_end"
            assert len(engine.batches) < len(tokens) * 2 / 3  # forced tokens took no step of their own
            assert tokenizer.decode(tokens) == text

    in_loop(scenario)
