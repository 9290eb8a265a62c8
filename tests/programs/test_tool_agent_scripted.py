"""The agent with tools, with a model that says what a script says: it calls what was chosen, with what was written."""

import pytest
from test_react_scripted import emitted, scripted

from loopwright.core.runs import RunSpec
from loopwright.engine.scripted import ScriptedExecutor
from system_rig import Outcome, RunningRun, byte_text, in_loop, program_source, system_over

pytestmark = pytest.mark.wasm

PRICE = {"tool": "price", "arguments": {"fruit": "pear"}, "result": "One pear costs 4 coins."}
HOURS = {"tool": "opening_hours", "arguments": {"day": "Sunday"}, "result": "The shop is closed on Sunday."}


async def answered(script: dict[str, str], question: str) -> Outcome:
    engine = ScriptedExecutor(scripted(script))
    try:
        async with system_over(engine, byte_text(engine)) as system:
            spec = RunSpec(source=program_source("tool_agent"), arguments={"question": question})
            return await RunningRun(system.launcher, await system.launcher.start(spec)).outcome()
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("call", "arguments", "use", "answer"),
    [
        ("price", '{"fruit": "pear"}', PRICE, "Four."),
        ("opening_hours", '{"day": "Sunday"}', HOURS, "No."),
    ],
)
def test_the_agent_calls_the_tool_that_was_chosen_with_the_arguments_that_were_written(
    call: str, arguments: str, use: dict[str, object], answer: str
) -> None:
    async def scenario() -> None:
        script = {
            "assistant\nCall: ": call,
            f"assistant\nCall: {call} ": arguments,
            f"Result: {use['result']}\nAnswer:": f" {answer}\n",
        }
        outcome = await answered(script, "A question?")
        assert outcome.result == answer
        assert emitted(outcome) == [use]

    in_loop(scenario)
