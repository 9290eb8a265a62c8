"""A ReACT agent: thinks, searches, reads what it found, and answers. The KV cache stays while the tool runs.

A small model does not keep a format by itself, so the program holds it: the labels are written by the program, the
action is chosen from a list, and stop strings end each line.
"""

# /// program
# permissions = { http = ["127.0.0.1:*", "localhost:*"] }
# limits = { seconds = 300 }
# ///

from loopwright import Context, emit, emit_text, http

SYSTEM = """You answer questions with the help of a search tool. You write lines that begin with Thought, Action, \
Observation or Answer.

Question: What is the capital of Japan?
Thought: I should search for the capital of Japan.
Action: Search[capital of Japan]
Observation: Tokyo is the capital of Japan.
Thought: The observation says that Tokyo is the capital of Japan.
Action: Finish
Answer: Tokyo is the capital of Japan."""


async def main(question: str, search_url: str = "http://127.0.0.1:8111/search", max_turns: int = 4) -> str:
    ctx = Context()
    ctx.system(SYSTEM)
    ctx.user(f"Question: {question}")
    for turn_number in range(max_turns):
        await write(ctx, "Thought:", max_tokens=48)
        action = await act(ctx, must_search=turn_number == 0)
        if action != "Search[":
            break
        query = await write(ctx, "", until="]", max_tokens=16)
        emit({"call": "search", "query": query})
        found = await http.get_text(search_url, params={"q": query})
        observation = f"\nObservation: {found}\n"
        emit_text(observation)
        ctx.append(observation)  # the context grows where it is: nothing before it is run again
    return await write(ctx, "Answer:", max_tokens=48)


async def act(ctx: Context, must_search: bool) -> str:
    """Writes the action: the model chooses between the two forms that the format has."""
    ctx.append("Action:")
    options = [" Search["] if must_search else [" Search[", " Finish\n"]
    action = await ctx.choose(options)
    emit_text(f"Action:{action}")
    return action.strip()


async def write(ctx: Context, label: str, max_tokens: int, until: str = "\n") -> str:
    """Writes the label, lets the model go on within the line, and shows it while it is made."""
    if label:
        ctx.append(label)
        emit_text(label)
    turn = await ctx.generate(emit=True, max_tokens=max_tokens, until=until, stop="\n")
    emit_text(until)
    return turn.text.strip()
