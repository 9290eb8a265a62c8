"""An agent with tools of its own: the model chooses one, writes its arguments under the tool's schema, and answers.

A small model writes no calls by itself, so the program holds the form: the choice is between the tools' names, and the
arguments can only be JSON that fits. `tools.list()` would add those of the server that the permissions list.
"""

import json
from typing import Literal

from loopwright import Context, Tool, emit, json_schema, tool

PRICES = {"apple": 3, "pear": 4, "plum": 2}


@tool
def price(fruit: Literal["apple", "pear", "plum"]) -> str:
    """Tells the price of a fruit.

    Args:
        fruit: Which fruit.
    """
    return f"One {fruit} costs {PRICES[fruit]} coins."


@tool
async def opening_hours(day: Literal["Saturday", "Sunday"]) -> str:
    """Tells when the shop is open.

    Args:
        day: Of the week.
    """
    return "The shop is open from 9 to 12." if day == "Saturday" else "The shop is closed on Sunday."


SYSTEM = """You answer questions about a fruit shop. You have these tools:
{tools}

Question: Can I come on Saturday?
Call: opening_hours {{"day": "Saturday"}}
Question: How much is an apple?
Call: price {{"fruit": "apple"}}
Question: How much is a plum?
Call: price {{"fruit": "plum"}}"""


async def main(question: str = "When can I come on Saturday?") -> str:
    tools = {one.name: one for one in (price, opening_hours)}
    ctx = Context()
    ctx.system(SYSTEM.format(tools=described(tools)))
    ctx.user(f"Question: {question}")
    ctx.append("Call: ")
    chosen = tools[await ctx.choose(list(tools))]
    ctx.append(" ")
    written = await ctx.generate(grammar=json_schema(chosen.parameters), max_tokens=64)
    arguments = json.loads(written.text)
    result = await chosen(**arguments)
    emit({"tool": chosen.name, "arguments": arguments, "result": result})
    ctx.append(f"\nResult: {result}\nAnswer:")
    return (await ctx.generate(max_tokens=32, stop="\n")).text.strip()


def described(tools: dict[str, Tool]) -> str:
    return "\n".join(f"- {one.name}: {one.description} {json.dumps(one.parameters)}" for one in tools.values())
