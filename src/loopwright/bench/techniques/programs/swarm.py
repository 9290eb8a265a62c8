"""One of several writers: it waits for the story so far, adds its part, and hands the story on."""

# /// program
# permissions = { channels = ["swarm/*"] }
# limits = { seconds = 3600 }
# ///

from loopwright import Context, pull, push


async def main(number: str, role: int, roles: list[str], max_tokens: int) -> str:
    ctx = Context()
    ctx.system(roles[role])
    story = f"A story about house {number}." if role == 0 else await pull(f"swarm/{number}/{role}")
    ctx.user(f"{story}\nWrite the next two sentences.")
    story = f"{story}\n{(await ctx.generate(max_tokens=max_tokens, ignore_eos=True)).text}"
    if role + 1 < len(roles):
        await push(f"swarm/{number}/{role + 1}", story)
    return story
