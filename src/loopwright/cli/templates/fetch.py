"""Reads a page over HTTP and sums it up. Only hosts in its permissions can be reached."""

# /// program
# permissions = { http = ["127.0.0.1:*"] }
# limits = { seconds = 60 }
# ///

from loopwright import Context, http


async def main(url: str = "http://127.0.0.1:8000/v1/models", max_chars: int = 2000, max_tokens: int = 60) -> str:
    page = await http.get_text(url)
    ctx = Context()
    ctx.system("You sum up what you are given in one sentence.")
    ctx.user(page[:max_chars])
    turn = await ctx.generate(emit=True, max_tokens=max_tokens)
    return turn.text
