"""Traced samplers through all layers: equal to the one-request loop with the function run as Python, in any batch."""

import asyncio

import pytest

from loopwright.core.calls import Sampling
from loopwright.engine.byte_model import BYTE_TOKENS
from loopwright.text.stream import detokenize
from sampler_rig import SAMPLERS, loop, source_of
from system_rig import System, byte_oracle, byte_system, in_loop

PROMPT = "The quick brown fox jumps over"
IDS = [256, *PROMPT.encode()]
SANDBOXES = ["native", pytest.param("wasm", marks=pytest.mark.wasm)]

MAIN = """
async def main(options, fallback=False):
    ctx = Context(seed=5)
    ctx.append("The quick brown fox jumps over")
    state = {"state": STATE} if STATE else {}
    turn = await ctx.generate(sampler=SAMPLER, sampler_fallback=fallback, ignore_eos=True, **state, **options)
    carried = {name: one if isinstance(one, float) else list(one) for name, one in turn.sampler_state.items()}
    return [turn.tokens, turn.logprobs, carried, turn.reason, turn.text, ctx._kv.pages.kv_len, ctx.num_pages]
"""


def program(name: str) -> str:
    return f"from loopwright import *\n{source_of(name)}\n{MAIN}".replace("SAMPLER,", f"{name},")


def untraceable(name: str) -> str:
    """The same program with a branch that a trace cannot take; it changes nothing."""
    return program(name).replace("):\n", "):\n    if scores[0] > 1e30:\n        return None\n", 1)


def options_of(name: str, num_tokens: int) -> dict:
    gives_scores = name in ("top_five", "ranks", "presence", "odd_places")
    return {"max_tokens": num_tokens, **({"temperature": 0.9} if gives_scores else {})}


def check(name: str, got: list, num_tokens: int, **sampling) -> None:
    options = options_of(name, num_tokens)
    sampling = Sampling(seed=5, temperature=options.get("temperature", 0.0), **sampling)
    tokens, logprobs, state = loop(byte_oracle(), IDS, name, sampling, num_tokens)
    assert got[0] == tokens
    assert got[1] == pytest.approx(logprobs, abs=1e-5)
    assert got[2].keys() == state.keys()
    for key, value in state.items():
        assert got[2][key] == pytest.approx(value, abs=1e-3)  # logits of float32, through exp and log
    kv_len = len(IDS) + num_tokens - 1
    assert got[3:] == ["length", detokenize(BYTE_TOKENS, tokens), kv_len, -(-kv_len // 16)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_traced_sampler_equals_the_one_request_loop(name: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            check(name, (await system.run(program(name), options=options_of(name, 24))).result, 24)

    in_loop(scenario)


@pytest.mark.wasm
def test_tracing_works_the_same_in_the_sandbox() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            for name in ("mirostat", "presence"):
                check(name, (await system.run(program(name), "wasm", options=options_of(name, 16))).result, 16)

    in_loop(scenario)


def test_all_samplers_at_once_equal_their_solo_runs_and_share_batches() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            names = [*SAMPLERS, "mirostat", "presence"]
            runs = [system.run(program(name), options=options_of(name, 16)) for name in names]
            outcomes = await asyncio.gather(*runs)
            for name, outcome in zip(names, outcomes, strict=True):
                check(name, outcome.result, 16)
            assert max(batch.num_rows for batch in system.executor.batches) == len(names)

    in_loop(scenario)


@pytest.mark.parametrize("name", SAMPLERS)
def test_one_that_cannot_be_traced_runs_token_by_token_with_the_same_result(name: str) -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            refused = await system.run(untraceable(name), options=options_of(name, 12))
            assert refused.final.error is not None
            assert refused.final.error.type == "ProgramError"
            assert f"{name} cannot be traced: line 3: it needs a branch" in refused.final.error.message
            got = (await system.run(untraceable(name), options=options_of(name, 12), fallback=True)).result
            check(name, got, 12)
            rows = [row for batch in system.executor.batches for row in batch.all_rows]
            assert all(row.sampler is None for row in rows)

    in_loop(scenario)


def test_a_sampler_that_can_be_traced_is_traced_with_the_fallback_allowed() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            check("nucleus", (await system.run(program("nucleus"), options={"max_tokens": 6}, fallback=True)).result, 6)
            assert all(row.sampler is not None for batch in system.executor.batches for row in batch.all_rows)

    in_loop(scenario)


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("name", ["nucleus", "presence"])
def test_allowed_tokens_are_honoured_either_way(name: str, fallback: bool) -> None:
    allowed = tuple(range(97, 123))

    async def scenario() -> None:
        async with byte_system() as system:
            source = untraceable(name) if fallback else program(name)
            options = {**options_of(name, 10), "allowed": list(allowed)}
            check(name, (await system.run(source, options=options, fallback=fallback)).result, 10, allowed=allowed)

    in_loop(scenario)


@pytest.mark.parametrize("option", ["stop", "top_p", "presence_penalty", "logprobs"])
def test_token_by_token_refuses_by_name_what_it_does_not_honour(option: str) -> None:
    values = {"stop": "x", "top_p": 0.5, "presence_penalty": 1.0, "logprobs": "processed"}

    async def scenario() -> None:
        async with byte_system() as system:
            outcome = await system.run(untraceable("greedy"), options={option: values[option]}, fallback=True)
            assert outcome.final.error is not None
            assert outcome.final.error.type == "BadRequest"
            assert outcome.final.error.message.startswith(f"{option}: a sampler that runs token by token")

    in_loop(scenario)


async def continued(system: System) -> list:
    body = f"""
from loopwright import *
{source_of("mirostat")}
async def main():
    whole, parts = Context(seed=1), Context(seed=1)
    for ctx in (whole, parts):
        ctx.append("The quick brown fox jumps over")
    one = await whole.generate(sampler=mirostat, state=STATE, max_tokens=20, ignore_eos=True)
    state, tokens = STATE, []
    for _ in range(4):
        turn = await parts.generate(sampler=mirostat, state=state, max_tokens=5, ignore_eos=True)
        state, tokens = turn.sampler_state, [*tokens, *turn.tokens]
    return [one.tokens, tokens, one.sampler_state["mu"], state["mu"]]
"""
    return (await system.run(body)).result


def test_a_state_that_goes_on_into_the_next_segment_makes_four_segments_one() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            whole, parts, mu, last_mu = await continued(system)
            assert whole == parts
            assert mu == pytest.approx(last_mu, abs=1e-4)

    in_loop(scenario)


def test_under_a_grammar_a_sampler_is_asked_about_every_token_forced_ones_too() -> None:
    body = f"""
from loopwright import *
{source_of("presence")}
async def main(grammar):
    ctx = Context(seed=5)
    ctx.append("The quick brown fox jumps over")
    turn = await ctx.generate(sampler=presence, state=STATE, temperature=0.9, grammar=regex(grammar), max_tokens=40)
    return [turn.text, turn.reason, turn.sampler_state["num"], len(turn.tokens)]
"""

    async def scenario() -> None:
        async with byte_system() as system:
            text, reason, num, num_tokens = (await system.run(body, grammar="[a-z]{3}forced[0-9]{4}")).result
            assert (reason, num, num_tokens) == ("grammar_end", 13.0, 13)
            assert text[3:9] == "forced"
            assert text[9:].isdigit()
            assert all(row.num_drafts == 0 for batch in system.executor.batches for row in batch.all_rows)

    in_loop(scenario)
