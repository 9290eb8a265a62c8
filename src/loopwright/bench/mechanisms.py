"""What a token costs by who decides about it: the engine's bare loop, a segment, a traced sampler, a watching program,
and one in its sandbox that takes every token from a distribution. Run by `command`.

It is the Pie paper's Table 4, taken apart. Cases `mechanism=NAME/n=32` are the time from token to token of 32 texts at
once, greedy, in steady decode; the ratio is over the bare loop, in rounds that take turns, and `added_ms` what is on
top. `program` reads the 256 most probable tokens, packed, and chooses one; `program_segment` is the same sandbox around
a segment; both time themselves. With `--workers N` these two run in N processes, and control and engine in one of
their own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeAlias

from loopwright.bench.bare_loop import bare_loop
from loopwright.bench.decode import make_prompts
from loopwright.bench.live import live_programs, result_of
from loopwright.bench.opened import opened, opened_workers
from loopwright.bench.rows import Metric, Row, case_name, measured
from loopwright.bench.sessions import Caller, by_sampler, by_segment, by_streaming, by_watching
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite, System
from loopwright.bench.together import all_of
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.errors import InternalError
from loopwright.core.runs import ClientInput, Runs, RunSpec

TPOT_MS = Metric("tpot_ms", "ms", lower_is_better=True)
ADDED_MS = Metric("added_ms", "ms", lower_is_better=True)

NUM_TEXTS = 32
NUM_TOKENS_IN = 128
NUM_FEW, NUM_MORE = 8, 96
LEAD_S = 0.05  # from telling the programs to begin until they do
PAPER = {"segment": "+2.39 % (8B), +5.64 % (3B), +11.41 % (1B)"}
_PREAMBLE = """
import asyncio, time
from loopwright import Context, emit, receive

PROMPT = "Once upon a time there was a clock that " * 12

async def begin() -> float:
    emit("ready")
    await asyncio.sleep(await receive() - time.time())
    return time.perf_counter()

"""
PROGRAMS = {
    "program_segment": _PREAMBLE
    + """
async def main(few: int, more: int) -> float:
    ctx = Context()
    ctx.append(PROMPT)
    await ctx.generate(max_tokens=few, ignore_eos=True)
    began = await begin()
    turn = await ctx.generate(max_tokens=more, ignore_eos=True)
    taken = time.perf_counter() - began
    await ctx.generate(max_tokens=few, ignore_eos=True)
    return taken / len(turn.tokens)
""",
    "program": _PREAMBLE
    + """
async def choose(ctx: Context, num: int) -> None:
    for _ in range(num):
        dist = await ctx.next_dist(256)
        ctx.accept(dist.ids[0])

async def main(few: int, more: int) -> float:
    ctx = Context()
    ctx.append(PROMPT)
    await choose(ctx, few)
    began = await begin()
    await choose(ctx, more)
    taken = time.perf_counter() - began
    await choose(ctx, few)
    return taken / more
""",
}
"""Each tells the seconds from token to token, of those that all of a wave make at once: they begin at the moment that
they are told when all have come so far, and go on a little for those who are not done. What launches take is
`bench launch`'s."""

Generate: TypeAlias = Callable[[int], Awaitable[None]]
"""Makes so many tokens of each text."""

Timed: TypeAlias = Callable[[], Awaitable[float]]
"""Runs all texts, and tells the median of what each of them took from token to token, in seconds."""

_SUITE = "mechanisms"


@dataclass(frozen=True, slots=True)
class Load:
    """How much a measurement is."""

    num_texts: int = NUM_TEXTS
    num_more: int = NUM_MORE
    num_rounds: int = 5


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    load = Load(num_rounds=options.num_rounds)
    values: dict[str, list[float]] = {}
    if options.num_workers:  # first: what they take of a device ends with their process
        async with opened_workers(options) as workers:
            values |= await told_s(program_side(workers.runs, SystemClock(), load), load)
    async with opened(options, open_system) as system:
        values = await tpots_s(engine_side(system, load), SystemClock(), load) | values
        if not options.num_workers:
            values |= await told_s(program_side(system.runs, SystemClock(), load), load)
    return Measured(rows=tuple(rows_of(values, load)), workload={})


SUITE = Suite(name=_SUITE, title="bench mechanisms: time per token by who decides about it", measure=measure)


def engine_side(system: System, load: Load) -> dict[str, Generate]:
    """The ways that need no sandbox, by name."""
    prompts = make_prompts(load.num_texts, system.control.models()[0].vocab_size)

    async def bare(num_tokens: int) -> None:
        tokens = await bare_loop(system.executor, prompts, num_tokens)
        if any(len(one) != num_tokens for one in tokens):
            raise InternalError(f"the bare loop gave {[len(one) for one in tokens]} tokens, not {num_tokens} each")

    async def by(program: Callable[..., Awaitable[None]], num_tokens: int) -> None:
        async def one(number: int) -> None:
            with Caller(system.control, f"mechanisms-{number}") as caller:
                await program(caller, num_tokens, prompt_len=NUM_TOKENS_IN)

        await all_of(one(number) for number in range(load.num_texts))

    return {
        "bare": bare,
        "segment": partial(by, by_segment),
        "streamed": partial(by, by_streaming),
        "sampler": partial(by, by_sampler),
        "watched": partial(by, by_watching),
    }


def program_side(runs: Runs, clock: Clock, load: Load) -> dict[str, Timed]:
    """The ways in a sandbox, by name."""

    async def run(name: str) -> float:
        arguments = {"few": NUM_FEW, "more": load.num_more}
        spec = RunSpec(source=PROGRAMS[name], filename=f"{name}.py", arguments=arguments)
        async with live_programs(runs, spec, load.num_texts) as run_ids:
            begin = ClientInput((clock.wall_s() + LEAD_S,))
            await all_of(runs.send(run_id, begin) for run_id in run_ids)
            told = await all_of(result_of(runs, run_id) for run_id in run_ids)
        found = [one for one in told if isinstance(one, float)]
        if len(found) < len(told):
            raise InternalError(f"{name} told {told}, not seconds")
        return median(found)

    return {name: partial(run, name) for name in PROGRAMS}


async def told_s(sides: dict[str, Timed], load: Load) -> dict[str, list[float]]:
    """Seconds from token to token by each way, in rounds that take turns, as the programs tell them."""
    for run in sides.values():
        await run()  # warm-up
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(load.num_rounds):
        for name, run in sides.items():
            values[name].append(await run())
    return values


async def tpots_s(sides: dict[str, Generate], clock: Clock, load: Load) -> dict[str, list[float]]:
    """Seconds from token to token by each way, in rounds that take turns: what more tokens take than few."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for generate in sides.values():
        await generate(NUM_FEW)  # warm-up
    for _ in range(load.num_rounds):
        for name, generate in sides.items():
            elapsed_s: list[float] = []
            for num_tokens in (NUM_FEW, NUM_FEW + load.num_more):
                started_s = clock.now_s()
                await generate(num_tokens)
                elapsed_s.append(clock.now_s() - started_s)
            values[name].append((elapsed_s[1] - elapsed_s[0]) / load.num_more)
    return values


def rows_of(values: dict[str, list[float]], load: Load) -> list[Row]:
    """Each way beside the bare loop."""
    bare = values["bare"]
    rows: list[Row] = []
    for name, found in values.items():
        case = case_name(mechanism=name, n=load.num_texts)
        row = measured(_SUITE, case, TPOT_MS, [1e3 * one for one in found], PAPER.get(name))
        if name == "bare":
            rows.append(row)
            continue
        ratios = [one / of_bare for one, of_bare in zip(found, bare, strict=True)]
        rows.append(row.against("bare", 1e3 * median(bare), median(ratios)))
        added_ms = [1e3 * (one - of_bare) for one, of_bare in zip(found, bare, strict=True)]
        rows.append(measured(_SUITE, case, ADDED_MS, added_ms))
    return rows
