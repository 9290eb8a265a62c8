"""Starts each tool the moment its call is complete, while the model still writes the rest of its turn."""

# /// program
# limits = { seconds = 120 }
# ///

import asyncio

from loopwright import Context, ToolCall, emit, emit_text, tool

DISTANCES = {("Paris", "Berlin"): 878, ("Berlin", "Warsaw"): 517, ("Paris", "Warsaw"): 1367}


@tool
async def distance(start: str, end: str) -> int | None:
    """The distance between two cities in km.

    Args:
        start: a city
        end: another one
    """
    emit({"started": [start, end]})
    await asyncio.sleep(0.01)  # a real tool would ask somebody
    return DISTANCES.get((start, end), DISTANCES.get((end, start)))


async def main(question: str = "How far is it from Paris to Berlin, and from there to Warsaw?") -> str:
    ctx = Context()
    ctx.user(question)
    calls: list[tuple[ToolCall, asyncio.Task[int | None]]] = []
    stream = ctx.stream(tools=[distance], max_tokens=300)
    async for part in stream:
        if isinstance(part, ToolCall):
            calls.append((part, asyncio.create_task(part())))
        elif part.text:
            emit_text(part.text)
    for call, task in calls:
        ctx.tool_result(call, await task)
    answer = await ctx.generate(emit=True, tools=[distance], tool_choice="none", max_tokens=100)
    return answer.text
