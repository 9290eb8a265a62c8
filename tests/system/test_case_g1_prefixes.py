"""Cases G1 and D2. One prompt cold, warm, forked, and after it was evicted says the same, with equal log-probabilities;
prompts that are scored give the same numbers in any order. All of the reference class: to 1e-5."""

from typing import Any

import pytest

from loopwright.control.config import ControlConfig
from loopwright.core.calls import Sampling
from system_rig import System, byte_oracle, byte_system, in_loop

PROMPT = "A page that was computed once is not computed again, and nobody can tell from the answer. "
FULL_PAGES = (len(PROMPT) + 1) // 16 * 16
NUM_TOKENS = 12

GENERATE = """
from loopwright import Context
async def main(prompt: str, num_tokens: int, forks: bool = False):
    ctx = Context()
    ctx.append(prompt)
    if forks:
        ctx = await ctx.fork()
    turn = await ctx.generate(max_tokens=num_tokens, ignore_eos=True)
    return [turn.tokens, turn.logprobs, turn.cached_tokens]
"""

SCORE = """
from loopwright import Context
from loopwright.sdk.distribution import Distribution
from loopwright.sdk.resources import Queue
async def main(prompts: list[list[int]], since: int):
    queue, scores = Queue(), []
    for number, tokens in enumerate(prompts):
        wanted = [
            {"index": index, "k": 1, "must_include": [tokens[index + 1]]} for index in range(since, len(tokens) - 1)
        ]
        answer = await queue.forward_text(
            pages=[], grow_from=1000 * (number + 1), kv_len=0, tokens=tokens, positions=list(range(len(tokens))),
            distributions=wanted,
        )
        dists = [Distribution(one) for one in answer["distributions"]]
        logprobs = [dist.logprob(tokens[since + place + 1]) for place, dist in enumerate(dists)]
        scores.append([logprobs, answer.get("cached_tokens", 0)])
        queue.free_pages(list(range(1000 * (number + 1), 1000 * (number + 1) + answer["num_pages"])))
    return scores
"""


async def generate(system: System, prompt: str = PROMPT, **arguments: Any) -> list[Any]:
    outcome = await system.run(GENERATE, prompt=prompt, num_tokens=NUM_TOKENS, **arguments)
    return outcome.result


def test_a_prompt_says_the_same_cold_warm_forked_and_after_it_was_evicted() -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=16) as system:
            cold = await generate(system)
            warm = await generate(system)
            forked = await generate(system, forks=True)
            for letter in "abcd":
                await generate(system, letter * 150)  # takes more blocks than were empty
            again = await generate(system)
            warm_again = await generate(system)
        oracle = byte_oracle().generate([256, *PROMPT.encode()], Sampling(), NUM_TOKENS)
        for tokens, logprobs, _ in (cold, warm, forked, again, warm_again):
            assert tokens == list(oracle.tokens)
            assert logprobs == pytest.approx(oracle.logprobs, abs=1e-5)
        assert [one[2] for one in (cold, warm, again, warm_again)] == [0, FULL_PAGES, 0, FULL_PAGES]

    in_loop(scenario)


def test_a_chat_that_goes_on_in_a_new_run_computes_only_what_is_new() -> None:
    body = """
from loopwright import Context
async def main(turns: list[str]):
    ctx, found = Context(), []
    for number, text in enumerate(turns):
        (ctx.user if number % 2 == 0 else ctx.assistant)(text)
    turn = await ctx.generate(max_tokens=20, ignore_eos=True)
    return [turn.text, turn.num_prompt_tokens, turn.cached_tokens, turn.tokens]
"""

    async def scenario() -> None:
        answers: dict[bool, list[Any]] = {}
        for is_on in (True, False):
            async with byte_system(control=ControlConfig(prefix_cache=is_on)) as system:
                first = (await system.run(body, turns=["Tell me of pages, and of those who read them."])).result
                turns = ["Tell me of pages, and of those who read them.", first[0], "And of blocks?"]
                second = (await system.run(body, turns=turns)).result
                answers[is_on] = [first[3], second[3]]
                assert first[2] == 0
                assert (second[2] >= first[1] // 16 * 16) if is_on else (second[2] == 0)
        assert answers[True] == answers[False]

    in_loop(scenario)


@pytest.mark.parametrize("since", [0, 40])
def test_prompts_scored_in_two_orders_give_the_same_numbers(since: int) -> None:
    texts = [
        PROMPT,
        PROMPT[:70] + " or else",
        "Quite another text, which has nothing in common with the others at all.",
    ]
    prompts = [[256, *text.encode()] for text in texts]

    async def scenario() -> None:
        async with byte_system() as system:
            one = (await system.run(SCORE, prompts=prompts, since=since)).result
            other = (await system.run(SCORE, prompts=prompts[::-1], since=since)).result[::-1]
        oracle = byte_oracle()
        for prompt, (scores, _), (again, num_cached) in zip(prompts, one, other, strict=True):
            logprobs = oracle.logits(prompt).log_softmax(dim=-1)
            expected = [float(logprobs[place, prompt[place + 1]]) for place in range(since, len(prompt) - 1)]
            assert scores == pytest.approx(expected, abs=1e-5)
            assert again == pytest.approx(expected, abs=1e-5)
            assert num_cached == since // 16 * 16

    in_loop(scenario)
