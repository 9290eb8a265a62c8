"""The cascade of a small and a large model: who answers, and that its ledger is what the models ran, to the token."""

import math
from typing import Any

from script_rig import emitted

from models_rig import Served, two_byte_models
from system_rig import in_loop, program_source

QUESTIONS = ["Where is it?", "And who has it now?", "Where is it?", "Why?"]


async def ran(served: Served) -> dict[str, int]:
    """How many tokens each model has run."""
    stats = {name: await control.stats() for name, control in served.controls.items()}
    return {name: one.num_prefill_tokens + one.num_decode_tokens for name, one in stats.items()}


async def answered(served: Served, sure: float) -> tuple[list[str], list[str], dict[str, Any]]:
    """The answers, by whom they are, and the ledger."""
    outcome = await served.run(
        program_source("cascade"), questions=QUESTIONS, small="alpha", large="beta", sure=sure, max_tokens=12
    )
    *told, ledger = emitted(outcome)
    assert [one["question"] for one in told] == QUESTIONS
    return outcome.result, [one["by"] for one in told], ledger["ledger"]


def test_a_cascade_asks_the_large_model_where_the_small_one_is_not_sure_and_counts_every_token() -> None:
    async def scenario() -> None:
        async with two_byte_models() as served:
            small, by, _ = await answered(served, -1e9)
            assert by == ["small"] * 4
            large, by, _ = await answered(served, 1e9)
            assert by == ["large"] * 4
            sure = await a_sureness_between(served)
            before = await ran(served)
            mixed, by, ledger = await answered(served, sure)
            after = await ran(served)
            assert set(by) == {"small", "large"}
            assert mixed == [small[n] if one == "small" else large[n] for n, one in enumerate(by)]
            for name, model in (("small", "alpha"), ("large", "beta")):
                costs = ledger[name]
                assert costs["asked"] == (4 if name == "small" else by.count("large"))
                assert costs["prefill"] + costs["decode"] == after[model] - before[model]
            assert ledger["small"]["prefill"] <= 4 * 16  # but for the last page of each, the server had run them before

    in_loop(scenario)


async def a_sureness_between(served: Served) -> float:
    """The mean of the surest and the least sure answer of the small model."""
    source = """
from loopwright import Context
async def main(questions: list[str]) -> list[float]:
    means = []
    for question in questions:
        ctx = Context()
        ctx.user(question)
        turn = await ctx.generate(max_tokens=12)
        means.append(sum(turn.logprobs) / len(turn.logprobs))
    return means
"""
    means = (await served.run(source, questions=QUESTIONS)).result
    assert not math.isclose(min(means), max(means))
    return (min(means) + max(means)) / 2


def test_a_cascade_that_may_not_ask_the_large_model_says_so() -> None:
    async def scenario() -> None:
        async with two_byte_models() as served:
            source = program_source("cascade").replace('models = ["*"]', 'models = ["alpha"]')
            outcome = await served.run(source, questions=["Why?"], small="alpha", large="beta", sure=1e9)
            assert outcome.final.code == "denied"

    in_loop(scenario)
