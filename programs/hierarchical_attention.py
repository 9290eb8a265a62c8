"""Reads a document as the tree that it is: a token sees the text of its own node, of the parent and of direct children.

All of it runs in one forward; the answer belongs to the root, so what lies deeper reaches it through the nodes between,
and the pages of what it does not see are free. A node is a text and the nodes below it.
"""

from typing import Any

from loopwright import Context, emit

Span = tuple[int, int]


async def main(
    document: list[Any] = [
        "A handbook for guests.",
        ["Food.", ["Breakfast is from seven to ten."], ["Dinner is at eight."]],
        ["Sleep.", ["Quiet hours begin at eleven."]],
    ],
    question: str = "When is dinner?",
    max_tokens: int = 24,
) -> str:
    ctx = Context()
    await read(ctx, document, above=[], end=f"Question: {question}\nAnswer:")
    num_tokens = len(ctx.tokens)
    turn = await ctx.generate(max_tokens=max_tokens, stop="\n")
    emit({"document": num_tokens, "pages": ctx.num_pages})
    return turn.text.strip()


async def read(ctx: Context, node: list[Any], above: list[Span], end: str = "</node>\n") -> list[Span]:
    """Puts a node into the context; the spans of its own text."""
    text, *nodes = node
    own: list[Span] = [await ctx.place(f"<node>{text}", sees=above)]
    children: list[Span] = []
    for one in nodes:
        children += await read(ctx, one, above=own)
    own.append(await ctx.place(end, sees=[*above, *own, *children]))
    return own
