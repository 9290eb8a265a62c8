"""An agent that chooses between its tools until it can answer. A grammar keeps each of its steps well formed."""

import json

from loopwright import Context, emit, json_schema, log

SYSTEM = """You solve a task in steps. Each step is one line of JSON: {"tool": ..., "input": ...}.
add: adds numbers, written like 2 + 3. length: counts the letters of a word. answer: ends, with the answer as input."""


def add(text: str) -> str:
    return str(sum(float(part) for part in text.split("+")))


def length(text: str) -> str:
    return str(len(text.strip()))


TOOLS = {"add": add, "length": length}


def step_of(names: list[str]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"tool": {"enum": names}, "input": {"type": "string", "maxLength": 48}},
        "required": ["tool", "input"],
        "additionalProperties": False,
    }


async def main(task: str = "What is 12 + 30?", max_steps: int = 4) -> str:
    ctx = Context()
    ctx.system(SYSTEM)
    ctx.user(task)
    for number in range(max_steps):
        names = ["answer"] if number == max_steps - 1 else [*TOOLS, "answer"]  # the last step can only be an answer
        turn = await ctx.generate(grammar=json_schema(step_of(names)), max_tokens=120)
        if turn.reason != "grammar_end":
            log("the step is not whole: it reached max_tokens")
            break
        step = json.loads(turn.text)
        emit(step)
        if step["tool"] == "answer":
            return str(step["input"])
        try:
            found = TOOLS[step["tool"]](step["input"])
        except ValueError as error:
            found = f"error: {error}"
        ctx.user(f"{step['tool']} gives: {found}")  # what came before stays in the KV cache
    return "no answer"
