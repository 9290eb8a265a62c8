"""Programs that think before they answer, beside a model that says what a script says: the shape of what they do, what
is joined when, that nothing is run twice, and that branches share batches."""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from script_rig import emitted, engine_system, in_virtual_time, run, scripted_system

from system_rig import System, byte_system, in_loop


def word(seen: str) -> str:
    """Five letters that depend on all that was seen."""
    number = zlib.crc32(seen.encode())
    return "".join(chr(97 + (number >> 5 * place) % 26) for place in range(5))


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_a_tree_of_thought_has_a_branch_for_each_thought_and_runs_each_prefix_once(branches: int) -> None:
    async def scenario() -> None:
        async with byte_system(num_blocks=1024) as system:
            outcome, stats = await run(system, "tree_of_thought", branches=branches, max_tokens=12)
            paths = outcome.result
            assert [len(path) for path in paths] == [3] * branches**3
            assert [one["path"] for one in emitted(outcome)] == paths
            for level in range(3):  # siblings under one parent lie side by side
                parents = [tuple(path[:level]) for path in paths]
                size = branches ** (3 - level)
                assert all(len({*parents[at : at + size]}) == 1 for at in range(0, len(paths), size))
            prompts = "You solve a task step by step.What is 17 + 25 + 8?Propose a plan in one line."
            again = "Carry out the plan in one line.Is the result right? Rate it from 1 to 9."
            chat = 40 * (1 + branches + branches**2)  # what the template and a fork's last token add at most
            assert stats.num_prefill_tokens <= len(prompts) + branches**2 * len(again) + chat

    in_loop(scenario)


@pytest.mark.parametrize("branches", [2, 3])
def test_branches_of_a_tree_of_thought_share_batches(branches: int) -> None:
    async def scenario() -> None:
        async with scripted_system(lambda seen, _: f"{word(seen)}\n") as system:
            _, stats = await run(system, "tree_of_thought", branches=branches, max_tokens=12)
            widths = [branches**level for level in (1, 2, 3)]
            assert stats.num_decode_tokens >= 3 * sum(widths)
            assert stats.num_rows / stats.num_steps >= sum(widths) / 3 * 0.5  # and steps that run what is appended

    in_loop(scenario)


def test_recursion_of_thought_splits_where_the_model_says_so_and_joins_the_answers() -> None:
    tasks = {"whole": ("left", "right"), "right": ("far", "near")}
    tag_of = {task: "<branch>" if task in tasks else "<leaf>" for task in ("whole", "left", "right", "far", "near")}

    def says(seen: str, written: str) -> str:
        task = seen.rpartition("user\n")[2].partition("\0")[0]
        if task.startswith("The answers are: "):
            return "<leaf>" + task.removeprefix("The answers are: ").partition(". What")[0].replace(" and ", "+") + "\n"
        parts = "".join(f"{part}\n" for part in tasks.get(task, (f"={task}",)))
        return tag_of[task] + parts

    async def scenario() -> None:
        async with scripted_system(says) as system:
            outcome, _ = await run(system, "recursion_of_thought", task="whole")
            assert outcome.result == "=left+=far+=near"
            assert [one for one in emitted(outcome) if "parts" in one] == [
                {"task": "whole", "parts": ["left", "right"]},
                {"task": "right", "parts": ["far", "near"]},
            ]
            flat, _ = await run(system, "recursion_of_thought", task="whole", max_depth=0)
            assert not any("parts" in one for one in emitted(flat))

    in_loop(scenario)


@pytest.mark.parametrize(("max_depth", "least_rows"), [(2, 1.5), (5, 3.4)])
def test_recursion_of_thought_goes_no_deeper_than_it_may(max_depth: int, least_rows: float) -> None:
    """A model that would always split: every task of the last level is answered, in order, and prompts are run once."""

    def says(seen: str, written: str) -> str:
        task = seen.rpartition("user\n")[2].partition("\0")[0]
        if task.startswith("The answers are: "):
            return (
                "<leaf>" + "+".join(task.removeprefix("The answers are: ").partition(". What")[0].split(" and ")) + "\n"
            )
        return f"<leaf>{task}\n" if len(task) > max_depth else f"<branch>{task}0\n{task}1\n"

    async def scenario(system: System) -> None:
        outcome, stats = await run(system, "recursion_of_thought", task="t", max_depth=max_depth, max_tokens=400)
        leaves = [f"t{number:0{max_depth}b}" for number in range(2**max_depth)]
        assert outcome.result == "+".join(leaves)
        splits = [one["task"] for one in emitted(outcome) if "parts" in one]
        assert {len(task) for task in splits} == set(range(1, max_depth + 1))
        assert len(splits) == 2**max_depth - 1
        assert stats.num_rows / stats.num_steps >= least_rows  # levels of 1, 2, 4 … one after another

    in_virtual_time(says, scenario)


def test_graph_of_thought_joins_pairs_as_they_are_finished() -> None:
    """Proposals of 4, 32, 16, 8, 4, 16, 3 and 32 letters, each a step: so they are finished in that order, and a merge
    of 4 letters is finished before the next proposal is."""

    def next_token(history: tuple[int, ...]) -> int:
        return 97 + history.count(258) % 26  # a letter that says how long the context's chat is

    async def scenario() -> None:
        async with engine_system(next_token) as system:
            outcome, stats = await run(system, "graph_of_thought", max_tokens=4)
            pairs = [(one["level"], *sorted(map(len, one["pair"]))) for one in emitted(outcome)]
            first = [(0, 3, 4), (0, 4, 8)]
            if (0, 4, 4) in pairs[:1]:  # on a busy machine the program is told of the three shortest at once
                first = [(0, 4, 4), (0, 3, 8)]
            assert pairs[:2] == first
            # Of what comes behind them the program may be told at once there, too.
            assert sorted(pairs[2:]) == [(0, 16, 16), (0, 32, 32), (1, 4, 4), (1, 4, 4)]
            assert pairs[-1] == (1, 4, 4)
            assert [len(text) for text in outcome.result] == [4, 4]
            prompt, merges = 90, 6 * (120 + 2 * 32)  # with their templates
            assert stats.num_prefill_tokens <= prompt + 8 + merges  # the prompt once, for eight proposals
            assert stats.num_rows / stats.num_steps >= 2

    in_loop(scenario)


def test_skeleton_of_thought_elaborates_each_point_that_it_listed() -> None:
    def says(seen: str, written: str) -> str:
        request = seen.rpartition("user\n")[2].partition("\0")[0]
        if request.startswith("Name"):
            return "".join(f"{number}. point{number}\n" for number in (1, 2, 3))
        return request.rpartition(": ")[2] + " it is" * 7

    async def scenario() -> None:
        async with scripted_system(says) as system:
            outcome, stats = await run(system, "skeleton_of_thought")
            points = ["point1", "point2", "point3"]
            assert emitted(outcome)[0] == {"points": points}
            assert outcome.result == [f"{point}{' it is' * 7}" for point in points]
            assert stats.num_rows - stats.num_steps >= 2 * 40  # three elaborations of 48 tokens, side by side
            question = "How do I care for a bicycle?"
            assert stats.num_prefill_tokens < 2 * len(question) + 4 * 90  # the question once, and the four requests

    in_loop(scenario)


def test_a_prefix_tree_runs_each_part_once_and_its_leaves_together() -> None:
    parts = [["You write one sentence about an animal."], [" It is a cat.", " It is a dog."]]
    parts += [[" It is young.", " It is old."], [" It is happy:", " It is sad:"]]

    async def scenario() -> None:
        async with scripted_leaves() as system:
            outcome, stats = await run(system, "prefix_tree", max_tokens=16)
            assert len(outcome.result) == 8
            times = (1, 1, 2, 4)
            num_tokens = sum(len("".join(level)) * num for level, num in zip(parts, times, strict=True))
            assert stats.num_prefill_tokens <= 1 + num_tokens + (2 + 4 + 8)  # a fork's first row has its last token too
            for prompt, text in outcome.result.items():
                assert text == "".join(chr(97 + len(prompt) % 26) for _ in range(16))
            assert stats.num_rows / stats.num_steps >= 4

    @asynccontextmanager
    async def scripted_leaves() -> AsyncIterator[System]:
        def next_token(history: tuple[int, ...]) -> int:
            text = bytes(token for token in history if token < 256).decode()
            return 97 + (text.rindex(":") + 1 if ":" in text else 0) % 26

        async with engine_system(next_token) as system:
            yield system

    in_loop(scenario)


def test_self_consistency_takes_what_most_reasons_lead_to() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome, _ = await run(system, "self_consistency", answers=["yes", "no"], paths=5, max_tokens=8)
            (votes,) = (one["votes"] for one in emitted(outcome))
            assert sum(votes.values()) == 5
            assert votes[outcome.result] == max(votes.values())

    in_loop(scenario)


def test_reflexion_tries_again_with_its_own_advice_until_the_check_is_content() -> None:
    def says(seen: str, written: str) -> str:
        request = seen.rpartition("user\n")[2].partition("\0")[0]
        if "are missing" in request:
            return f"use {request.removeprefix('The words ').partition(' are')[0]}\n"
        num_heeded = request.count("use ") if request.startswith("Heed") else 0
        return ("one", "one two", "one two three")[num_heeded]

    async def scenario() -> None:
        async with scripted_system(says) as system:
            outcome, _ = await run(system, "reflexion", task="Count.", words=["one", "two", "three"], max_trials=4)
            assert outcome.result == "one two three"
            assert [one["missing"] for one in emitted(outcome)] == [["two", "three"], ["three"], []]

    in_loop(scenario)


def test_mcts_plays_where_promise_is_highest_and_counts_every_simulation() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome, _ = await run(system, "mcts", simulations=7, branches=2, max_depth=2, max_tokens=6)
            assert emitted(outcome)[-1]["visits"] == 7
            assert 0 < emitted(outcome)[-1]["value"] < 1
            assert 1 <= len(outcome.result) <= 2
            again, _ = await run(system, "mcts", simulations=7, branches=2, max_depth=2, max_tokens=6)
            assert again.result == outcome.result

    in_loop(scenario)
