"""The programs that use tools and generated code, with a model that says what a script says."""

from collections.abc import Sequence
from typing import Any

import pytest

from loopwright.core.events import Emit
from loopwright.core.runs import RunSpec
from loopwright.engine.scripted import ScriptedExecutor
from system_rig import Outcome, RunningRun, byte_text, in_loop, program_source, system_over

pytestmark = pytest.mark.wasm

END_OF_TURN = 259


def run_program(name: str, turns: Sequence[str], **arguments: Any) -> Outcome:
    """A model that writes one of `turns` after the other."""
    kept: list[Outcome] = []
    scripts = [turn.encode() for turn in turns]

    def next_token(history: Sequence[int]) -> int:
        *before, written = bytes(one for one in history if one < 256).split(b"assistant\n")
        script = scripts[len(before) - 1]
        return script[len(written)] if len(written) < len(script) else END_OF_TURN

    async def scenario() -> None:
        engine = ScriptedExecutor(next_token)
        try:
            async with system_over(engine, byte_text(engine)) as system:
                spec = RunSpec(source=program_source(name), filename=f"{name}.py", arguments=arguments)
                kept.append(await RunningRun(system.launcher, await system.launcher.start(spec)).outcome())
        finally:
            engine.close()

    in_loop(scenario)
    return kept[0]


def emitted(outcome: Outcome) -> list[Any]:
    return [event.value for event in outcome.events if isinstance(event, Emit)]


def call(start: str, end: str) -> str:
    return f'<tool_call>\n{{"name": "distance", "arguments": {{"start": "{start}", "end": "{end}"}}}}\n</tool_call>'


def test_early_tools_starts_its_tools_in_the_middle_of_the_turn() -> None:
    turn = f"First.{call('Paris', 'Berlin')} Second.{call('Warsaw', 'Berlin')} That is all."
    outcome = run_program("early_tools", [turn, "878 km and 517 km."])
    assert outcome.result == "878 km and 517 km."
    assert outcome.text == "First. Second. That is all.878 km and 517 km."
    assert emitted(outcome) == [{"started": ["Paris", "Berlin"]}, {"started": ["Warsaw", "Berlin"]}]
    texts = [getattr(event, "text", event) for event in outcome.events]
    first, second = (at for at, event in enumerate(outcome.events) if isinstance(event, Emit))
    assert first < texts.index("S") < second < texts.index("T")


def test_code_act_answers_from_what_it_has_seen_when_its_turns_are_over() -> None:
    first, second = "```python\nprint(sum(data))\n```\n", "```python\nprint(max(data))\n```\n"
    turns = [first, second, "Answer: 6.5\n"]
    outcome = run_program("code_act", turns, task="The sum?", data=[6.5], max_turns=2)
    assert (outcome.result, [one["printed"] for one in emitted(outcome)]) == ("6.5", ["6.5\n", "6.5\n"])


@pytest.mark.parametrize("end", ["```python\nprint(sum(data))\n```\nAnswer:\n", "Answer: \n"])
def test_code_act_answers_what_was_printed_where_the_model_says_nothing_new(end: str) -> None:
    outcome = run_program("code_act", ["```python\nprint(sum(data))\n```\n", end, "Answer:\n"])
    assert (outcome.result, len(emitted(outcome))) == ("18", 1)


def test_code_act_reads_its_error_writes_better_code_and_answers() -> None:
    wrong = "```python\nprint(sum(date))\n```\n"
    right = "I mistyped.\n```python\nprint(sum(data))\n```\n"
    outcome = run_program("code_act", [wrong, right, "Answer: 6.5"], task="The sum?", data=[1, 2, 3.5])
    assert outcome.result == "6.5"
    errors = [one["error"] for one in emitted(outcome)]
    assert errors[0].startswith("NameError: name 'date' is not defined")
    assert errors[0].endswith("(code.py, line 1)")
    assert errors[1] is None
