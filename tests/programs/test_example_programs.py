"""Every program of programs/ runs in the Wasm sandbox, beside the real model, and its events are those of expected/.

LOOPWRIGHT_TEST_WRITE_EXPECTED=1 writes those files anew, to be read before they are committed. In them, texts that
follow each other are one, and what differs from run to run is left out.
"""

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli.demo_search import search_tool
from loopwright.core.events import Emit, Event, Receive, Text
from loopwright.core.runs import ClientInput, RunSpec
from system_rig import (
    PROGRAMS,
    Outcome,
    RunningRun,
    SmolLM2,
    System,
    WatchedExecutor,
    event_list,
    in_loop,
    program_source,
    system_over,
)

pytestmark = [pytest.mark.wasm, pytest.mark.model]

EXPECTED = Path(__file__).parent / "expected"


def test_every_program_has_a_test() -> None:
    """Expected events beside the real model here, or a definition in another file, which names it."""
    names = {path.stem for path in PROGRAMS.glob("*.py")}
    expected = {path.stem for path in EXPECTED.glob("*.json")}
    tests = [name for name in globals() if name.startswith("test_")]
    assert [name for name in sorted(expected) if not any(test.startswith(f"test_{name}_") for test in tests)] == []
    elsewhere = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    assert [name for name in sorted(names - expected) if f'"{name}"' not in elsewhere] == []
    assert expected <= names


def test_hello_greets(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            await run_as_expected(system, "hello")
            assert engine.batches == []  # the smallest program asks nothing of the model

    in_loop(scenario)


def test_completion_continues_a_text(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, _):
            await run_as_expected(system, "completion")

    in_loop(scenario)


def test_chat_shows_its_answer_piece_by_piece(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, _):
            outcome = await run_as_expected(system, "chat")
            assert sum(isinstance(event, Text) for event in outcome.events) > 5

    in_loop(scenario)


def test_custom_sampler_reads_distributions_and_never_writes_the_banned_word(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            outcome = await run_as_expected(system, "custom_sampler")
            assert "Paris" not in outcome.result
            rows = [row for batch in engine.batches for row in batch.all_rows]
            assert all(row.sampling is None for row in rows)  # the program chooses, not the engine
            tokens = smollm2.text.tokenizer.encode(outcome.result)
            assert sum(len(row.distributions) for row in rows) == len(tokens) + 1  # and one that ends the turn

    in_loop(scenario)


def test_fork_and_join_writes_eight_lines_side_by_side(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            outcome = await run_as_expected(system, "fork_and_join")
            assert len(set(outcome.result)) == 8
            assert max(batch.num_rows for batch in engine.batches) == 8
            assert sum(row.kv_len == 0 for batch in engine.batches for row in batch.all_rows) == 1  # the prefix, once

    in_loop(scenario)


def test_spawned_search_forks_its_question_into_children(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            outcome = await run_as_expected(system, "spawned_search")
            assert outcome.result["num_found"] == 3
            runs = await system.launcher.runs()
            assert [(one.code, one.parent) for one in runs[1:]] == [("ok", runs[0].run)] * 3
            assert sum(row.kv_len == 0 for batch in engine.batches for row in batch.all_rows) == 1  # the question, once

    in_loop(scenario)


def test_attention_sink_streams_with_pages_for_its_window_alone(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            outcome = await run_as_expected(system, "attention_sink")
            assert outcome.result["num_tokens"] > 200
            assert outcome.result["most_pages"] <= 1 + 96 // 16 + 1  # sinks, window, and where it begins in a page
            decoding = [row for batch in engine.batches for row in batch.all_rows if row.num_tokens == 1]
            assert max(row.kv_len for row in decoding) < 16 + 96 + 16
            assert all(row.mask is None for row in decoding)

    in_loop(scenario)


def test_json_answer_keeps_to_its_schema_in_fewer_steps_than_it_has_tokens(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            outcome = await run_as_expected(system, "json_answer")
            answer = json.loads(outcome.result)
            assert list(answer) == ["capital", "continent", "confidence"]
            assert answer["confidence"] in range(1, 6)
            verdicts = [event.value for event in outcome.events if isinstance(event, Emit)]
            assert [verdict["reason"] for verdict in verdicts] == ["grammar_end"]
            assert verdicts[0]["is_island"] in ("yes", "no")
            num_tokens = len(smollm2.text.tokenizer.encode(outcome.result))
            assert len(engine.batches) < num_tokens  # though a second question was answered as well

    in_loop(scenario)


def test_traced_sampler_runs_in_the_engine_and_keeps_surprise_near_its_target(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            outcome = await run_as_expected(system, "traced_sampler")
            rows = [row for batch in engine.batches for row in batch.all_rows]
            assert all(row.sampler is not None for row in rows if row.sampling is not None)
            (value,) = [event.value for event in outcome.events if isinstance(event, Emit)]
            assert 1.0 < value["surprise"] < 3.0

    in_loop(scenario)


def test_react_searches_and_answers(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, _):
            with search_tool() as url:
                outcome = await run_as_expected(system, "react", search_url=url)
            calls = [event.value for event in outcome.events if isinstance(event, Emit)]
            assert len(calls) >= 1
            assert "Seine" in outcome.result

    in_loop(scenario)


def test_watched_segment_writes_without_a_letter_while_the_model_runs_ahead(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, _):
            outcome = await run_as_expected(system, "watched_segment")
            assert len(outcome.result) > 40
            assert "e" not in outcome.result.lower()
            (value,) = [event.value for event in outcome.events if isinstance(event, Emit)]
            assert value["vetoes"] > 3

    in_loop(scenario)


def test_tool_agent_calls_the_tool_that_the_question_is_about(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, _):
            outcome = await run_as_expected(system, "tool_agent")
            (value,) = [event.value for event in outcome.events if isinstance(event, Emit)]
            assert (value["tool"], value["arguments"]) == ("opening_hours", {"day": "Saturday"})

    in_loop(scenario)


def test_chat_room_carries_what_one_client_says_to_the_other(smollm2: SmolLM2) -> None:
    async def scenario() -> None:
        async with watched_system(smollm2) as (system, engine):
            ann, bob = [await start(system, "chat_room", {"name": name}) for name in ("Ann", "Bob")]
            await seen(system, ann, Receive)
            await seen(system, bob, Receive)  # both are in the room
            await system.launcher.send(bob.run_id, ClientInput(("hello",)))
            await seen(system, ann, Text)
            await system.launcher.send(ann.run_id, ClientInput(("hi Bob",)))
            await seen(system, bob, Text)
            for run in (ann, bob):
                await system.launcher.send(run.run_id, ClientInput(is_end=True))
            assert (await bob.outcome()).text == "Ann: hi Bob\n"
            check_expected("chat_room", await ann.outcome())
            assert engine.batches == []  # nobody asked the model

    in_loop(scenario)


@asynccontextmanager
async def watched_system(smollm2: SmolLM2) -> AsyncIterator[tuple[System, WatchedExecutor]]:
    engine = WatchedExecutor(smollm2.executor)
    async with system_over(engine, smollm2.text) as system:
        yield system, engine


async def run_as_expected(system: System, name: str, **more_arguments: Any) -> Outcome:
    """Runs a program with the arguments that its file in expected/ names, and compares its events."""
    expected = json.loads((EXPECTED / f"{name}.json").read_text())
    outcome = await (await start(system, name, {**expected["arguments"], **more_arguments})).outcome()
    check_expected(name, outcome)
    return outcome


async def start(system: System, name: str, arguments: dict[str, Any]) -> RunningRun:
    spec = RunSpec(source=program_source(name), filename=f"{name}.py", arguments=arguments, seed=0)
    return RunningRun(system.launcher, await system.launcher.start(spec))


async def seen(system: System, run: RunningRun, kind: type[Event]) -> None:
    """Waits for an event of that kind."""
    async for event in system.launcher.events(run.run_id):
        if isinstance(event, kind):
            return
    raise AssertionError(f"the run ended without {kind.__name__}")


def check_expected(name: str, outcome: Outcome) -> None:
    """Compares a run's events with those of its file in expected/."""
    path = EXPECTED / f"{name}.json"
    expected = json.loads(path.read_text())
    events = with_joined_texts(outcome.events)
    if os.environ.get("LOOPWRIGHT_TEST_WRITE_EXPECTED"):
        expected["events"] = events
        path.write_text(json.dumps(expected, indent=2, ensure_ascii=False) + "\n")
    assert events == expected["events"]


def with_joined_texts(events: Sequence[Event]) -> list[dict[str, Any]]:
    joined: list[dict[str, Any]] = []
    for event in event_list(events):
        if joined and event["type"] == joined[-1]["type"] == "text":
            joined[-1]["text"] += event["text"]
        else:
            joined.append(event)
    return joined
