"""Programs that work on more than a context holds, and programs that work together, beside a model with a script."""

import asyncio
from typing import Any

from script_rig import emitted, run, scripted_system

from loopwright.core.runs import RunSpec
from system_rig import RunningRun, byte_system, in_loop, program_source


def request_of(seen: str) -> str:
    """The last thing that the user said."""
    return seen.rpartition("user\n")[2].partition("\0")[0]


def test_four_roles_of_a_swarm_hand_their_story_on_in_whatever_order_they_start() -> None:
    def says(seen: str, written: str) -> str:
        return f"part {request_of(seen).count('part')}."

    async def scenario() -> None:
        async with scripted_system(says) as system:
            runs = []
            for role in (3, 1, 0, 2):
                spec = RunSpec(
                    source=program_source("swarm"), filename="swarm.py", sandbox="native", arguments={"role": role}
                )
                runs.append(RunningRun(system.launcher, await system.launcher.start(spec)))
            last, *others = await asyncio.gather(*(one.outcome() for one in runs))
            assert last.result == "A story about a lighthouse.\npart 0.\npart 1.\npart 2.\npart 3."
            parts = [one for outcome in (last, *others) for one in emitted(outcome)]
            assert sorted((one["role"], one["part"]) for one in parts) == [(n, f"part {n}.") for n in range(4)]

    in_loop(scenario)


def read_text(**arguments: Any) -> tuple[dict[str, Any], list[Any], int]:
    """What the reader answers and emits about a text of ten slices, and how often the model was asked."""
    asked: set[str] = set()

    def says(seen: str, written: str) -> str:
        asked.add(seen)
        text = request_of(seen).partition("\n\nQuestion")[0]
        words = [word for word in text.split() if word.startswith("key")]
        return (" ".join(words) or "nothing") + "\n"

    async def scenario() -> tuple[dict[str, Any], list[Any]]:
        async with scripted_system(says) as system:
            outcome, _ = await run(system, "recursive_reader", question="Which keys?", **arguments)
            return outcome.result, emitted(outcome)

    result, events = asyncio.run(scenario())
    return result, events, len(asked)


TEXT = "".join((f"key{number} " if number % 3 == 0 else "").ljust(40, "x") for number in range(10))


def test_the_recursive_reader_asks_about_slices_and_then_about_what_was_found() -> None:
    result, events, num_asked = read_text(text=TEXT, slice_chars=40)
    assert result == {"answer": "key0 key3 key6 key9", "calls": 11, "unread_chars": 0}
    assert events == [{"level": 0, "slices": 10, "unread": 0, "kept": 4}]
    assert num_asked <= 11  # two slices may hold the same


def test_the_recursive_reader_stays_within_its_budget_and_says_what_it_left_unread() -> None:
    result, events, _ = read_text(text=TEXT, slice_chars=40, max_calls=5)
    assert result == {"answer": "key0 key3", "calls": 5, "unread_chars": 6 * 40}
    assert events == [{"level": 0, "slices": 4, "unread": 6, "kept": 2}]
    assert read_text(text=TEXT, slice_chars=40, max_calls=1)[0]["calls"] == 1


def test_a_context_is_compacted_only_into_a_summary_that_is_shorter() -> None:
    summaries = iter(["", "Ada of Oslo, tea", "y" * 30])

    def says(seen: str, written: str) -> str:
        if "Sum up" not in request_of(seen):
            return f"ok {request_of(seen)}\n"
        if not written:
            says.summary = next(summaries)  # type: ignore[attr-defined]
        return says.summary + "\n"  # type: ignore[attr-defined]

    async def scenario() -> None:
        async with scripted_system(says) as system:
            messages = ["x" * 60, "My name is Ada.", "I live in Oslo."]
            outcome, _ = await run(system, "context_compaction", messages=messages, max_tokens_kept=180)
            assert outcome.result == [f"ok {one}" if len(one) < 30 else f"ok {one[:37]}" for one in messages]
            accepted = [one["accepted"] for one in emitted(outcome)]
            assert accepted == [False, True]
            assert emitted(outcome)[1]["after"] < emitted(outcome)[1]["before"]

    in_loop(scenario)


def test_dropped_tool_descriptions_leave_their_pages_and_a_declared_approximation() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            outcome, _ = await run(system, "tool_spec_drop", max_tokens=8)
            (found,) = emitted(outcome)
            before, after = found["pages"]
            assert found["approximate"]
            assert after < before - 25  # of two descriptions of some 280 tokens each

    in_loop(scenario)


def test_three_ways_to_choose_agree_on_a_model_that_is_sure() -> None:
    def says(seen: str, written: str) -> str:
        return "a whale"

    async def scenario() -> None:
        async with scripted_system(says) as system:
            outcome, _ = await run(system, "constrained_choice")
            assert emitted(outcome) == [{"choose": "a whale", "grammar": "a whale", "score": "a whale"}]

    in_loop(scenario)
