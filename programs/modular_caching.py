"""Runs texts that prompts put together in ever new ways once, each by itself at a place of its own, and lends them.

A run imports them all and attends to those that it wants: their KV serves in any subset, for each has seen nothing but
the introduction. (Gim et al., "Prompt Cache", arXiv 2311.04934.)
"""

from loopwright import Context, NotFound, emit, export_context, import_context

INTRODUCTION = "You answer questions about a holiday flat.\n"
MODULES = {
    "house": "The flat is on the third floor. The key is with the neighbour, Ms Berg.\n",
    "kitchen": "The stove is lit with a match. Coffee is in the blue tin.\n",
    "region": "The beach is ten minutes away on foot. The ferry leaves at noon.\n",
}


async def main(
    question: str = "Where is the key?", wanted: list[str] = ["house", "region"], max_tokens: int = 32
) -> str:
    flat, is_found = Context(), True
    introduction = await flat.place(INTRODUCTION)
    modules = {name: await flat.place(text, sees=[introduction]) for name, text in MODULES.items()}
    end = await flat.place("\n", sees=[introduction, *modules.values()])  # nothing has run so far
    try:
        flat = await import_context("modules/flat")
    except NotFound:
        is_found = False
        await export_context(flat, "modules/flat", persistent=True, allow_approximate=True)
    await flat.attend([introduction, *(modules[name] for name in wanted), end])
    flat.append(f"Question: {question}\nAnswer:")
    turn = await flat.generate(max_tokens=max_tokens, stop="\n")
    emit({"imported": is_found, "tokens": len(flat.tokens), "pages": flat.num_pages})
    return turn.text.strip()
