"""A recursive language model: the long text stays in a variable, and the model is asked about slices of it, then about
what it said of them, until that is short enough to answer from. (Zhang et al., arXiv 2512.24601.)

`max_calls` bounds how often the model is asked, the last answer included; what was left unread for it is reported.
"""

import asyncio

from loopwright import Context, emit


async def main(
    text: str, question: str, slice_chars: int = 1500, max_calls: int = 16, max_tokens: int = 48
) -> dict[str, object]:
    reader = Context()
    reader.system("You answer from the text that you are given, in one line. You say 'nothing' if it does not help.")
    await reader.flush()
    calls_left, num_unread, level = max_calls - 1, 0, 0
    while len(text) > slice_chars and calls_left > 0:
        slices = [text[at : at + slice_chars] for at in range(0, len(text), slice_chars)]
        asked, unread = slices[:calls_left], slices[calls_left:]
        calls_left -= len(asked)
        num_unread += sum(map(len, unread)) if level == 0 else 0
        notes = await asyncio.gather(*(ask(reader, one, question, max_tokens) for one in asked))
        kept = [note for note in notes if note.lower().strip(". ") != "nothing"]
        emit({"level": level, "slices": len(asked), "unread": len(unread), "kept": len(kept)})
        text, level = "\n".join(kept), level + 1
    answer = await ask(reader, text[:slice_chars], question, max_tokens)
    return {"answer": answer, "calls": max_calls - calls_left, "unread_chars": num_unread}


async def ask(reader: Context, text: str, question: str, max_tokens: int) -> str:
    async with await reader.fork() as ctx:
        ctx.user(f"{text}\n\nQuestion: {question}")
        return (await ctx.generate(max_tokens=max_tokens, stop="\n")).text.strip()
