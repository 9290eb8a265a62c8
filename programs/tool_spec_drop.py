"""Hides the description of a tool once the model has written its call: later tokens do not attend to it any more.

What has seen the description keeps its influence, so the context says that it is approximate, and since when. Its full
pages are free at once.
"""

from loopwright import Approximate, Context, emit

SPECS = {
    "search": "search(query): finds pages of the public web. The query is a few words in plain English. ",
    "weather": "weather(city): the weather of today in a city, with temperature, wind and rain by the hour. ",
}


async def main(question: str = "How warm is it in Oslo?", max_tokens: int = 32) -> str:
    ctx = Context()
    spans = {name: await ctx.place(spec * 3) for name, spec in SPECS.items()}
    ctx.append(f"\nQuestion: {question}\nCall: ")
    name = await ctx.choose(list(SPECS))
    pages = ctx.num_pages
    for span in spans.values():
        await ctx.hide(span)
    found = ctx.provenance()
    emit({"tool": name, "pages": [pages, ctx.num_pages], "approximate": isinstance(found, Approximate)})
    ctx.append("\nResult: 4 degrees\nAnswer: ")
    return (await ctx.generate(max_tokens=max_tokens, stop="\n")).text
