"""Generating from guesses, whatever the guesses: the tokens, the distribution and the context of plain generation."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwright.compose.config import RuntimeConfig
from loopwright.engine.scripted import ScriptedExecutor
from system_rig import System, byte_oracle, byte_system, byte_text, in_loop, system_over

OPTIONS: dict[str, Any] = {"runtime": RuntimeConfig(allows_native=True, needs_wasm=False)}
PROMPT = "serving serving serving"
CHOICES = [97, 98, 99]

# Guesses what `guess` says: what plain generation gave, but for every third round, when it is off by one.
PROGRAM = """
from loopwright import Context, speculate

async def main(prompt: str, max_tokens: int, options: dict, cost: float = 0.25, ignore_eos: bool = False):
    plain = Context(seed=5)
    plain.append(prompt)
    turn = await plain.generate(max_tokens=max_tokens, ignore_eos=ignore_eos, **options)
    ctx = Context(seed=5)
    ctx.append(prompt)
    await ctx.flush()
    start, rounds = len(ctx.tokens), 0

    async def guess(last, most):
        nonlocal rounds
        rounds += 1
        right = turn.tokens[len(ctx.tokens) - start:][:4]
        return [one + (rounds % 3 == 0) for one in right] if right else [1]

    found = await speculate(ctx, guess, max_tokens=max_tokens, cost=cost, ignore_eos=ignore_eos, **options)
    same = ctx.tokens == plain.tokens and found.tokens == turn.tokens and found.text == turn.text
    after = [(await one.generate(max_tokens=5, ignore_eos=True)).tokens for one in (plain, ctx)]
    return [same, after[0] == after[1], found.num_steps, found.num_saved, found.gave_up, len(turn.tokens), turn.reason]
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "top_p": 0.9},
        {"allowed": [97, 98, 257], "temperature": 3.0, "seed": 6},  # which ends soon
    ],
    ids=str,
)
@pytest.mark.parametrize("cost", [0.25, 5.0])
def test_what_comes_of_guesses_is_what_comes_without(options: dict[str, Any], cost: float) -> None:
    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            ends = "allowed" in options
            arguments = {"prompt": PROMPT, "max_tokens": 50, "options": options, "cost": cost, "ignore_eos": not ends}
            same, goes_on, steps, saved, gave_up, num_tokens, reason = (await system.run(PROGRAM, **arguments)).result
            assert (same, goes_on) == (True, True)
            assert steps + saved == num_tokens
            assert saved > 0
            assert gave_up or cost < 5 or num_tokens < 25  # four at most a round are fewer than five
            assert reason == ("stop_token" if ends else "length")

    in_loop(scenario)


GUIDE = Path(__file__).parents[2] / "docs" / "speculation.md"


def test_the_example_of_the_guide_writes_what_plain_generation_writes_in_fewer_steps() -> None:
    """Of a model that writes a word again and again, whose period of three is shorter than the guesses."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    text = "abcabc"

    async def scenario() -> None:
        engine = ScriptedExecutor(lambda history: history[-3])
        try:
            async with system_over(engine, byte_text(engine)) as system:
                before = await system.controller.stats()
                outcome = await system.run(example, text=text)
                after = await system.controller.stats()
                assert outcome.result == ("abc" * 30)[:64]
                assert after.num_steps - before.num_steps == 13, "four guesses and one token each, and the last four"
        finally:
            engine.close()

    in_loop(scenario)


CHI_SQUARE = """
from collections import Counter
from loopwright import Context, speculate

async def main(prompt: str, choices: list[int], num_seeds: int):
    counts = Counter()
    for seed in range(num_seeds):
        async with Context(seed=seed) as ctx:
            ctx.append(prompt)
            found = await speculate(
                ctx, lambda last, most: [choices[seed % 3]] * most, max_tokens=2, temperature=4.0, allowed=choices
            )
            counts[str(list(found.tokens))] += 1
    return counts
"""


def test_the_sampled_distribution_is_the_models() -> None:
    """Of two tokens, over seeds, whatever was guessed: chi-square with 8 degrees of freedom, at one in a thousand."""
    num_seeds = 240

    async def counted(system: System) -> dict[str, int]:
        arguments = {"prompt": PROMPT, "choices": CHOICES, "num_seeds": num_seeds}
        counts: dict[str, int] = (await system.run(CHI_SQUARE, **arguments)).result
        return counts

    def shares(tokens: list[int]) -> np.ndarray:
        logits = np.asarray(byte_oracle().logits(tokens)[-1])[CHOICES].astype(np.float64) / 4.0
        return np.exp(logits - np.logaddexp.reduce(logits))

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            counts = await counted(system)
            prompt = [256, *PROMPT.encode()]
            first = shares(prompt)
            statistic = 0.0
            for one, share in zip(CHOICES, first, strict=True):
                for other, then in zip(CHOICES, shares([*prompt, one]), strict=True):
                    expected = num_seeds * share * then
                    assert expected > 4  # else the statistic is none
                    statistic += (counts.get(str([one, other]), 0) - expected) ** 2 / expected
            assert sum(counts.values()) == num_seeds
            assert statistic < 26.12

    in_loop(scenario)


class Priced:
    """Stands for what control has measured."""

    def __init__(self, cost: float | None) -> None:
        self._cost = cost

    def note(self, num_tokens: int, taken_s: float, num_drafts: int = 0, waited_s: float = 0.0) -> None: ...

    def draft_cost(self, num_rows: int, num_drafts: int) -> float | None:
        return self._cost


def test_what_is_measured_of_a_step_has_its_drafts_in_it_and_what_the_engine_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[tuple[int, int, float]] = []

    class Noting(Priced):
        def note(self, num_tokens: int, taken_s: float, num_drafts: int = 0, waited_s: float = 0.0) -> None:
            noted.append((num_tokens, num_drafts, waited_s))

    monkeypatch.setattr("loopwright.control.controller.StepTimes", lambda: Noting(1.9))

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            await system.run(PRICED, prompt=PROMPT, drafting=0.0)
        guessed = [(num_tokens, num_drafts) for num_tokens, num_drafts, _ in noted if num_drafts]
        assert guessed == [(5, 4)] * 19 + [(3, 2)]
        assert all(waited_s > 0 for *_, waited_s in noted)

    in_loop(scenario)


PRICED = """
from loopwright import Context, speculate

async def main(prompt: str, drafting: float):
    plain = Context(seed=5)
    plain.append(prompt)
    turn = await plain.generate(max_tokens=60, ignore_eos=True)
    ctx = Context(seed=5)
    ctx.append(prompt)
    await ctx.flush()
    start, asked = len(ctx.tokens), []

    def guess(last, most):
        done = len(ctx.tokens) - start
        asked.append([done, last is None])
        return [*turn.tokens[done:][:2], 0, 0][:most]

    found = await speculate(ctx, guess, max_tokens=60, drafting=drafting, ignore_eos=True)
    return [found.tokens == turn.tokens, asked, found.gave_up, found.num_guesses, found.cost]
"""


@pytest.mark.parametrize(
    ("cost", "drafting", "pays"), [(None, 0.0, True), (1.9, 0.0, True), (2.5, 0.0, False), (0.5, 2.0, False)]
)
def test_guesses_go_on_as_long_as_they_bring_what_they_cost_on_this_server(
    cost: float | None, drafting: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four are right each time: a round brings two tokens and one more."""
    monkeypatch.setattr("loopwright.control.controller.StepTimes", lambda: Priced(cost))

    async def scenario() -> None:
        async with byte_system(**OPTIONS) as system:
            same, asked, gave_up, num_guesses, total = (
                await system.run(PRICED, prompt=PROMPT, drafting=drafting)
            ).result
            assert same
            assert gave_up is not pays
            assert total == pytest.approx(num_guesses * ((0.25 if cost is None else cost) + drafting))
            done = [place for place, _ in asked]
            if pays:
                assert done == list(range(0, 60, 3))
            else:  # the credit lasts for two rounds; then plain segments of 4, 8, 16 … tokens after each guess
                assert done == [0, 3, 6, 13, 24, 43]
                assert [went_plain for _, went_plain in asked] == [True, False, False, True, True, True]

    in_loop(scenario)
