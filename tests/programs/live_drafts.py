"""What a draft model is worth: how often it says what the whole model says, and what that saves. `make drafts` runs it.

The whole model writes greedily from four guesses in every round, whatever they cost. `stood` is the share of guesses
that it would have written itself, `saved` the share of its forwards that plain generation takes more, and `time` how
long it all took, in terms of plain generation in the same run.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from loopwright.compose.config import Config, RuntimeConfig
from loopwright.compose.system import open_here, prepare
from loopwright.core.runs import RunSpec
from loopwright.weights.store import no_progress
from system_rig import RunningRun

QUESTIONS = (
    "Tell me about the sea.",
    "What is the capital of France?",
    "How do I care for a bicycle?",
    "Write a short story.",
)
DRAFTS = ("default:dtype=int8", "default:dtype=stored", "default:layers=0-23,26-29", "default:layers=0-19,28-29")
TOKENS = 48

PROGRAM = """
# /// program
# permissions = { models = ["*"] }
# ///
import time
from loopwright import Context, speculate

async def main(question: str, small: str, max_tokens: int):
    ctx, ahead = Context(), Context(model=small)
    for one in (ctx, ahead):
        one.user(question)

    async def draft(_, most):
        if ahead.tokens:
            await ahead.truncate(min(len(ahead.tokens), len(ctx.tokens) - 1))
            ahead.accept(ctx.tokens[len(ahead.tokens):])
        return (await ahead.generate(max_tokens=min(4, most), ignore_eos=True)).tokens if most else ()

    started_s = time.monotonic()
    found = await speculate(ctx, draft, max_tokens=max_tokens, cost=-4.0, ignore_eos=True)  # whatever they cost
    taken_s = time.monotonic() - started_s
    plain = Context()
    plain.user(question)
    started_s = time.monotonic()
    turn = await plain.generate(max_tokens=max_tokens, ignore_eos=True)
    plain_s = time.monotonic() - started_s
    assert turn.tokens == found.tokens
    return [found.num_guesses, found.num_accepted, found.num_saved, taken_s, plain_s]
"""


async def main() -> int:
    print(f"{'draft':28} {'stood':>6} {'saved':>6} {'time':>6}")  # noqa: T201
    for small in DRAFTS:
        config = Config(more_models=(small,), runtime=RuntimeConfig(allows_native=True, needs_wasm=False))
        prepared = prepare(config, no_progress)
        async with open_here(config, prepared) as system:
            rows = []
            for question in ("Hello", *QUESTIONS):  # the first is a warm-up
                arguments = {"question": question, "small": prepared.more[0].name, "max_tokens": TOKENS}
                spec = RunSpec(source=PROGRAM, arguments=arguments, sandbox="native", seed=0)
                outcome = await RunningRun(system.runs, await system.runs.start(spec)).outcome()
                rows.append(outcome.result)
        guesses, accepted, saved, taken_s, plain_s = (sum(column) for column in zip(*rows[1:], strict=True))
        whole = TOKENS * len(QUESTIONS)
        print(f"{small:28} {accepted / (4 * guesses):6.2f} {saved / whole:6.2f} {taken_s / plain_s:6.2f}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
