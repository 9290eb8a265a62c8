"""One of four writers who make a story together: each waits for the part before its own and hands the story on.

Every role is a run of this program; a queue for each role holds what it has been given, so no order of starting loses
anything. Start one with `--role 0` … `--role 3` and the same `--group`.
"""

# /// program
# permissions = { channels = ["swarm/*"] }
# ///

from loopwright import Context, emit, pull, push

ROLES = ("say where we are", "bring in a hero", "bring trouble", "end the story well")


async def main(role: int, group: str = "story", topic: str = "a lighthouse", max_tokens: int = 96) -> str:
    ctx = Context()
    ctx.system(f"You are one of {len(ROLES)} writers of a story. Your part is to {ROLES[role]}.")
    await ctx.flush()  # while the others write
    story = f"A story about {topic}." if role == 0 else await pull(f"swarm/{group}/{role}")
    ctx.user(f"{story}\nWrite the next two sentences.")
    part = (await ctx.generate(max_tokens=max_tokens)).text.strip()
    story = f"{story}\n{part}"
    emit({"role": role, "part": part})
    if role + 1 < len(ROLES):
        await push(f"swarm/{group}/{role + 1}", story)
    return story
