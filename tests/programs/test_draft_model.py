"""Speculation with a second model of the same tokens: one that leaves layers out, and one that is never right."""

import math
from typing import Any

import pytest
from script_rig import emitted

from loopwright.core.executor import Executor
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.layer_choice import thinned
from loopwright.engine.scripted import NextToken, ScriptedExecutor
from models_rig import Served, serving
from system_rig import in_loop, program_source

QUESTION = "What is it?"
PROMPT = [256, *f"<|im_start|>user\n{QUESTION}".encode()]
ENDS = (257, 259)


@pytest.fixture(autouse=True)
def of_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's steps say nothing of what drafts cost, however busy this machine is."""
    monkeypatch.setattr("loopwright.control.step_times.MIN_STEP_S", math.inf)


async def speculated(served: Served, **arguments: Any) -> tuple[str, dict[str, Any]]:
    outcome = await served.run(
        program_source("draft_speculation"), model="large", question=QUESTION, small="small", **arguments
    )
    return outcome.result, emitted(outcome)[-1]


async def plain(served: Served, **arguments: Any) -> str:
    source = """
from loopwright import Context
async def main(question: str, max_tokens: int, temperature: float = 0.0, seed: int = 0) -> str:
    ctx = Context(seed=seed)
    ctx.user(question)
    return (await ctx.generate(max_tokens=max_tokens, temperature=temperature)).text
"""
    outcome = await served.run(source, model="large", question=QUESTION, **arguments)
    return outcome.result


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_of_fewer_layers_never_shows_in_the_answer(temperature: float) -> None:
    model = byte_model()
    executors: dict[str, Executor] = {
        "large": TorchExecutor(model, num_blocks=64, num_slots=64, num_threads=1),
        "small": TorchExecutor(thinned(model, (0,)), num_blocks=64, num_slots=64, num_threads=1),
    }

    async def scenario() -> None:
        async with serving(executors) as served:
            saved = 0
            for seed in range(5):
                arguments = {"max_tokens": 40, "temperature": temperature, "seed": seed}
                text, told = await speculated(served, drafting=0.0, **arguments)
                assert text == await plain(served, **arguments)
                saved += told["saved"]
            assert saved > 0  # some of its tokens are the whole model's

    try:
        in_loop(scenario)
    finally:
        for executor in executors.values():
            executor.close()


def scripted(large: NextToken, small: NextToken) -> dict[str, Executor]:
    return {"large": ScriptedExecutor(large), "small": ScriptedExecutor(small)}


@pytest.mark.parametrize(("is_right", "steps", "guesses"), [(True, 8, 8), (False, 40, 4)])
def test_a_draft_that_is_right_saves_four_steps_of_five_and_one_that_is_wrong_is_switched_off(
    is_right: bool, steps: int, guesses: int
) -> None:
    executors = scripted(
        lambda history: 97 + len(history) % 7, lambda history: 97 + (len(history) + (not is_right)) % 7
    )

    async def scenario() -> None:
        async with serving(executors) as served:
            _, told = await speculated(served, max_tokens=40)
            assert told == {
                "steps": steps, "saved": 40 - steps, "guesses": guesses, "gave_up": not is_right
            }  # fmt: skip
            small = await served.controls["small"].stats()
            large = await served.controls["large"].stats()
            # Each round the small model runs its four, once with what the large one said before them.
            assert small.num_steps <= 8 * 5
            assert large.num_steps <= steps + 2

    try:
        in_loop(scenario)
    finally:
        for executor in executors.values():
            executor.close()


@pytest.mark.parametrize("has_small", [True, False])
def test_a_draft_is_another_model_of_the_server_or_it_says_that_there_is_none(has_small: bool) -> None:
    def count(history: tuple[int, ...]) -> int:
        return 97 + len(history) % 7

    names = ("large", "small") if has_small else ("large",)
    executors: dict[str, Executor] = {name: ScriptedExecutor(count) for name in names}

    async def scenario() -> None:
        async with serving(executors) as served:
            outcome = await served.run(
                program_source("draft_speculation"), model="large", question=QUESTION, max_tokens=10
            )
            assert [set(one) for one in emitted(outcome)[:-1]] == ([] if has_small else [{"no gain"}])
            steps = await served.num_steps()
            assert steps.get("small", 0) > 0 or not has_small

    try:
        in_loop(scenario)
    finally:
        for executor in executors.values():
            executor.close()
