"""Tools in a segment: each call comes while the model still writes, holds to its tool's schema, and goes back as a
result; over a scripted model and, for what only a grammar can do, over the byte model with random weights."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from loopwright.core.events import Emit
from loopwright.engine.scripted import ScriptedExecutor
from system_rig import Outcome, byte_system, byte_text, in_loop, system_over

END_OF_TURN = 259

TOOLS = """
import asyncio
from loopwright import *

@tool
async def search(query: str, limit: int = 3) -> list[str]:
    "Finds pages."
    emit(["started", query])
    await asyncio.sleep(0)
    return [query.upper()] * limit

@tool
async def wait() -> None:
    "Does nothing."
"""

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "a } \\" </tool_call> b", "limit": 2}}\n</tool_call>'
WAIT = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
TEXT = f"Let me see.\n{CALL}\nAnd then\n{WAIT} done, at some length."


def scripted(text: str, after: str = "assistant\n") -> Any:
    """A model that writes `text`, byte by byte, in the turn that follows the last `after`, and ends it."""
    script = text.encode()

    def next_token(history: Sequence[int]) -> int:
        written = bytes(one for one in history if one < 256).rpartition(after.encode())[2]
        return script[len(written)] if len(written) < len(script) else END_OF_TURN

    return next_token


def run_scripted(text: str, source: str, sandbox: str = "native") -> tuple[Outcome, ScriptedExecutor]:
    kept: list[Any] = []

    async def scenario() -> None:
        engine = ScriptedExecutor(scripted(text))
        try:
            async with system_over(engine, byte_text(engine)) as system:
                kept.extend((await system.run(TOOLS + source, sandbox), engine))
        finally:
            engine.close()

    in_loop(scenario)
    return kept[0], kept[1]


def emitted(outcome: Outcome) -> list[Any]:
    return [event.value for event in outcome.events if isinstance(event, Emit)]


STREAM = """
async def main():
    ctx = Context()
    ctx.user("find it")
    tasks, stream, prose = [], ctx.stream(tools=[search, wait]), ""
    async for part in stream:
        if isinstance(part, ToolCall):
            emit(["call", part.index, part.name, part.arguments])
            tasks.append(asyncio.create_task(part()))
        elif part.text:
            prose += part.text
            emit(["text", part.text])
    emit("over")
    turn = stream.turn
    assert turn.prose == prose
    assert [one.arguments for one in turn.tool_calls] == [{"query": 'a } " </tool_call> b', "limit": 2}, {}]
    return {"results": await asyncio.gather(*tasks), "prose": prose, "text": turn.text, "reason": turn.reason,
            "broken": len(turn.broken_calls)}
"""


@pytest.mark.parametrize("sandbox", ["native", pytest.param("wasm", marks=pytest.mark.wasm)])
def test_a_tool_is_started_before_the_model_has_written_on(sandbox: str) -> None:
    outcome, _ = run_scripted(TEXT, STREAM, sandbox)
    found = ['A } " </TOOL_CALL> B'] * 2
    assert outcome.result == {
        "results": [found, None], "prose": "Let me see.\n\nAnd then\n done, at some length.", "text": TEXT,
        "reason": "stop_token", "broken": 0,
    }  # fmt: skip
    events = emitted(outcome)
    started = events.index(["started", 'a } " </tool_call> b'])
    assert events.index(["call", 0, "search", {"query": 'a } " </tool_call> b', "limit": 2}]) < started
    assert started < events.index(["text", "A"]) < events.index(["call", 1, "wait", {}]) < events.index("over")
    assert [one[1] for one in events[started:] if one[0] == "text"][:3] == ["\n", "A", "n"]


GENERATE = """
async def main():
    ctx = Context()
    ctx.system("Be brief.")
    ctx.user("find it")
    turn = await ctx.generate(tools=[search, wait]{options})
    for call in turn.tool_calls:
        ctx.tool_result(call, await call())
    emit([[one.name for one in turn.tool_calls], [[one.reason, one.message] for one in turn.broken_calls], turn.reason])
    await ctx.flush()
    return turn.text
"""


def test_what_the_model_is_told_and_what_goes_back() -> None:
    outcome, engine = run_scripted(TEXT, GENERATE.replace("{options}", ""))
    assert emitted(outcome)[1] == [["search", "wait"], [], "stop_token"]
    fed = [token for batch in engine.batches for row in batch.all_rows for token in row.token_ids]
    told = bytes(one if one < 256 else 0 for one in fed).decode()
    assert told.count('{"name": "search", "description": "Finds pages.", "parameters": {"type": "object"') == 1
    assert "system\nBe brief.\n\nYou may call these functions:\n" in told
    found = json.dumps(['A } " </TOOL_CALL> B'] * 2)
    assert told.endswith(f"done, at some length.\0\n\0tool\n{found}\0\n\0tool\nnull\0")


@pytest.mark.parametrize(
    ("text", "options", "calls", "reason"),
    [
        (TEXT, ", parallel_calls=False", ["search"], "grammar_end"),
        (f"{WAIT}\n{WAIT}", ', tool_choice="required"', ["wait", "wait"], "stop_token"),
        (f"{WAIT}\n{WAIT}", ', tool_choice="wait"', ["wait"], "grammar_end"),
        ("just text", ', tool_choice="none"', [], "stop_token"),
        (TEXT, ", strict=False", ["search", "wait"], "stop_token"),
    ],
)
def test_how_calls_end_and_are_chosen(text: str, options: str, calls: list[str], reason: str) -> None:
    outcome, _ = run_scripted(text, GENERATE.replace("{options}", options))
    assert emitted(outcome)[-1] == [calls, [], reason]
    assert text.startswith(outcome.result)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ('<tool_call>{"name": "find", "arguments": {}}</tool_call>', ["unknown_tool", "there is no tool 'find'"]),
        ('<tool_call>{"name": "search", "arguments": {"query": 1}}</tool_call>', ["invalid", "search.query: 1 is no"]),
        ('<tool_call>{"name": "search", "arguments": {"query": "}}', ["cut", "the text ends within a call"]),
        ("<tool_call>search</tool_call>", ["malformed", "a call is no JSON object"]),
    ],
)
def test_without_a_grammar_what_is_no_good_call_is_never_given_as_one(text: str, broken: list[str]) -> None:
    outcome, _ = run_scripted(text, GENERATE.replace("{options}", ", strict=False"))
    ((calls, (found,), _),) = emitted(outcome)
    assert calls == []
    assert found[0] == broken[0]
    assert found[1].startswith(broken[1])


def test_a_call_that_the_length_cuts_is_reported_as_cut() -> None:
    outcome, _ = run_scripted(TEXT, GENERATE.replace("{options}", ", max_tokens=60"))
    assert emitted(outcome) == [[[], [["cut", "the text ends within a call"]], "length"]]


REFUSALS = """
async def main():
    async def refused(ctx, **options):
        try:
            await ctx.generate(**{"tools": [search], **options})
        except BadRequest as error:
            return [error.field, error.message]
    def asked():
        ctx = Context()
        ctx.user("x")
        return ctx
    exotic = tools.Tool("exotic", "", {"type": "object", "properties": {"x": {"contains": {}}}}, lambda arguments: None)
    used = asked()
    await used.generate(max_tokens=1)
    used.user("more")
    return [
        await refused(asked(), grammar=regex("a"), strict=False),
        await refused(asked(), tool_choice="other"),
        await refused(asked(), tools=[], tool_choice="required"),
        await refused(asked(), strict=False, tool_choice="required"),
        await refused(asked(), strict=False, parallel_calls=False),
        await refused(asked(), tools=[search, search]),
        await refused(asked(), tools=[search, exotic]),
        await refused(used),
        await refused(asked(), tools=[exotic], strict=False, max_tokens=1),
    ]
"""


def test_what_cannot_be_held_is_an_error_that_names_its_field() -> None:
    outcome, _ = run_scripted("text", REFUSALS)
    *refused, allowed = outcome.result
    assert [field for field, _ in refused] == [
        "grammar", "tool_choice", "tool_choice", "tool_choice", "parallel_calls", "tools",
        "tools.exotic.parameters#/properties/x/contains", "tools",
    ]  # fmt: skip
    assert "does not tell of search" in refused[-1][1]
    assert allowed is None


RANDOM = """
async def main(seeds: int):
    @tool
    async def rate(stars: int, mood: str | None = None) -> None:
        "Rates."
    rate.parameters["properties"]["stars"].update(minimum=1, maximum=5)
    turns = []
    for seed in range(seeds):
        ctx = Context()
        ctx.user("go")
        choice = ["required", "rate", "auto"][seed % 3]
        turn = await ctx.generate(tools=[search, rate], tool_choice=choice, temperature=1.0, seed=seed, max_tokens=150,
            parallel_calls=False)
        turns.append([choice, turn.reason, [[one.name, one.arguments] for one in turn.tool_calls],
            [one.reason for one in turn.broken_calls]])
        ctx.close()
    return turns
"""


def test_a_random_model_calls_only_as_the_schemas_allow() -> None:
    async def scenario() -> None:
        async with byte_system() as system:
            turns = (await system.run(TOOLS + RANDOM, seeds=12)).result
        for choice, reason, calls, broken in turns:
            assert set(broken) <= ({"cut"} if reason == "length" else set())
            assert all(1 <= arguments["stars"] <= 5 for name, arguments in calls if name == "rate")
            if choice != "auto":
                assert len(calls) + len(broken) == 1
            if choice == "rate":
                assert all(name == "rate" for name, _ in calls)
        assert any(calls for choice, _, calls, _ in turns if choice == "rate")

    in_loop(scenario)
