"""Programs by the thousand in a pool that holds a few dozen: forks, waits, cancels, failures, for as long as told.

`make soak` runs it; a short one is among the tests. Every program follows a plan of a catalogue, whose answer the
one-request loop gave before; which plan is next, and who is cancelled or fails, follows from the seed.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).parent.parent))  # for a run as a script

from loopwright.compose.config import RuntimeConfig
from loopwright.control.config import ControlConfig
from loopwright.core.batch import Batch, StepResult
from loopwright.core.calls import Sampling
from loopwright.core.executor import EngineShape, Executor
from loopwright.engine.byte_model import byte_model
from loopwright.engine.executor import TorchExecutor
from system_rig import Outcome, RunningRun, System, byte_oracle, byte_text, system_over
from view_model import DenseContext

PROGRAM = """
# /// program
# permissions = { children = ["@self"] }
# limits = { seconds = 3600 }
# ///
import asyncio
from loopwright import Context, parent_context, regex, spawn

def twice(scores):
    return scores * 2

async def go_on(seed: int, num_tokens: int):
    ctx = await parent_context()
    turn = await ctx.generate(max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True)
    return [turn.tokens, turn.logprobs]

async def branch(fork, seed, num_tokens):
    async with fork:
        return await fork.generate(max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True)

async def main(plan: list):
    ctx, told = Context(), []
    for step in plan:
        match step:
            case ["append", text]:
                ctx.append(text)
            case ["generate", seed, num_tokens]:
                turn = await ctx.generate(max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True)
                told.append([turn.tokens, turn.logprobs])
            case ["watch", seed, num_tokens, vetoed]:
                options = {"max_tokens": num_tokens, "temperature": 1.0, "seed": seed, "ignore_eos": True}
                async with ctx.watch(window=3, **options) as watched:
                    async for token in watched:
                        if token.index == vetoed:
                            vetoed = None
                            watched.veto(ban=False)
                told.append([watched.turn.tokens, watched.turn.logprobs])
            case ["fork", seeds, num_tokens]:
                forks = [await ctx.fork() for _ in seeds]
                turns = await asyncio.gather(*(branch(*one, num_tokens) for one in zip(forks, seeds)))
                told += [[turn.tokens, turn.logprobs] for turn in turns]
            case ["window", size, sinks]:
                await ctx.window(size, sinks)
            case ["greedy", num_tokens]:
                turn = await ctx.generate(max_tokens=num_tokens, ignore_eos=True)
                told.append([turn.tokens, turn.logprobs])
            case ["sampler", seed, num_tokens]:
                turn = await ctx.generate(
                    sampler=twice, max_tokens=num_tokens, temperature=1.0, seed=seed, ignore_eos=True
                )
                told.append([turn.tokens, turn.logprobs])
            case ["grammar", seed, num_tokens]:
                held = regex("[ab]{" + str(num_tokens) + "}")
                turn = await ctx.generate(grammar=held, max_tokens=num_tokens + 5, temperature=1.0, seed=seed)
                told.append([turn.tokens, turn.logprobs])
            case ["verify", seed, drafts]:
                verified = await ctx.verify(drafts, temperature=1.0, seed=seed)
                told.append([verified.tokens, verified.logprobs])
            case ["spawn", seed, num_tokens]:
                child = await spawn(go_on, seed=seed, num_tokens=num_tokens, context=ctx)
                told.append(await child.wait())
            case ["wait", seconds]:
                await asyncio.sleep(seconds)
            case ["fail"]:
                raise RuntimeError("as planned")
    return told
"""
PREFIXES = ("You are a careful assistant that answers in one line. ", "Once upon a time, ", "")
TOLERANCE, UNITS = 1e-5, 1e-6
"""The reference class; and one in the last place of float32, because values reach -20 and shapes of batches differ."""
SAMPLED: dict[str, Callable[[int], Sampling]] = {
    **dict.fromkeys(
        ("generate", "watch", "fork", "verify", "spawn"), lambda seed: Sampling(temperature=1.0, seed=seed)
    ),
    "sampler": lambda seed: Sampling(temperature=0.5, seed=seed),  # which doubles the scores
    "grammar": lambda seed: Sampling(temperature=1.0, seed=seed, allowed=tuple(b"ab")),
}
CANCEL_SHARE, FAULT_SHARE = 0.1, 0.002  # of programs, of steps
MAX_SILENCE_S = 120.0  # so long without any program ending, something is stuck


@dataclass(frozen=True)
class Plan:
    """What a program does, and what the one-request loop says to it; None if it fails on its own."""

    steps: list[list[Any]]
    answer: list[tuple[tuple[int, ...], tuple[float, ...]]] | None


@dataclass
class Report:
    """What came of a soak."""

    seed: int
    ended: Counter[str] = field(default_factory=Counter)  # programs, by how they ended
    num_of_fault: int = 0  # those of them that an injected fault ended
    num_faults: int = 0  # steps that the engine was made to fail
    num_calls_failed: int = 0  # in those steps, at most
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ended = ", ".join(f"{num} {how}" for how, num in sorted(self.ended.items()))
        faults = f"{self.num_faults} steps failed, which ended {self.num_of_fault}"
        return f"seed {self.seed}: {self.ended.total()} programs ended: {ended}; {faults}"


class FaultyExecutor:
    """An executor some of whose steps fail as a whole, and are not run."""

    def __init__(self, inner: Executor, rng: random.Random, report: Report) -> None:
        self._inner, self._rng, self._report = inner, rng, report

    @property
    def shape(self) -> EngineShape:
        return self._inner.shape

    def submit(self, batch: Batch) -> Future[StepResult]:
        if self._rng.random() >= FAULT_SHARE:
            return self._inner.submit(batch)
        lists = (batch.copies, batch.shifts, batch.embeds, batch.all_rows, batch.heads)
        self._report.num_faults += 1
        self._report.num_calls_failed += sum(map(len, lists))
        failed: Future[StepResult] = Future()
        failed.set_exception(RuntimeError("a fault that the soak injected"))
        return failed

    def close(self) -> None:
        self._inner.close()


def make_catalogue(rng: random.Random, num_plans: int) -> list[Plan]:
    oracle = byte_oracle()
    plans: list[Plan] = []
    for number in range(num_plans):
        if number % 6 == 5:
            plans.append(windowed_plan(rng, number))
            continue
        steps: list[list[Any]] = [["append", rng.choice(PREFIXES) + f"Plan {number}: {'abcdefgh'[number % 8] * 5}"]]
        for _ in range(rng.randint(1, 4)):
            seed, num_tokens = rng.randrange(100), rng.randint(2, 14)
            steps += rng.choice(
                [
                    [["generate", seed, num_tokens], ["append", " and then "]],
                    [["generate", seed, num_tokens]],
                    [["sampler", seed, num_tokens]],
                    [["grammar", seed, num_tokens]],
                    [["verify", seed, num_tokens]],  # `answer_of` makes drafts of the number
                    [["spawn", seed, num_tokens]],
                    [["watch", seed, num_tokens, rng.randrange(num_tokens)]],
                    [["fork", [seed, seed + 1, seed + 2][: rng.randint(1, 3)], num_tokens]],
                    [["wait", rng.choice([0.0, 0.05, 0.5])], ["generate", seed, num_tokens]],
                ]
            )
        if rng.random() < 0.1:
            steps.insert(rng.randint(1, len(steps)), ["fail"])
        plans.append(Plan(steps, answer_of(oracle, steps)))
    return plans


def windowed_plan(rng: random.Random, number: int) -> Plan:
    """Greedy segments in a context that sees the last of it, as the oracle says them with a dense mask."""
    text, (size, sinks) = f"Plan {number} slides. ", (rng.randint(1, 40), rng.choice([0, 4, 17]))
    steps: list[list[Any]] = [["append", text], ["window", size, sinks]]
    context, told = DenseContext(), []
    context.append([256, *text.encode()])
    context.window(size, sinks)
    for _ in range(rng.randint(1, 3)):
        num_tokens = rng.randint(1, 40)
        tokens, logprobs = context.generate(num_tokens)
        steps += [["greedy", num_tokens], ["wait", rng.choice([0.0, 0.05])]]
        told.append((tuple(tokens), tuple(logprobs)))
    return Plan(steps, told)


def answer_of(oracle: Any, steps: list[list[Any]]) -> list[tuple[tuple[int, ...], tuple[float, ...]]] | None:
    """What the program tells when it runs alone."""
    tokens, told = [256], []
    for step in steps:
        op, *rest = step
        if op == "fail":
            return None
        if op == "append":
            tokens += rest[0].encode()
        elif op in SAMPLED:
            for seed in rest[0] if op == "fork" else rest[:1]:
                generated = oracle.generate(tokens, SAMPLED[op](seed), rest[1])
                told.append((generated.tokens, generated.logprobs))
            if op == "verify":
                *right, last = told[-1][0]
                step[2] = [*right, (last + 1) % 256]
            if op not in ("fork", "spawn"):
                tokens += told[-1][0]
    return told


class Soak:
    """Keeps so many programs live until its time is over."""

    def __init__(self, system: System, plans: list[Plan], rng: random.Random, report: Report) -> None:
        self._system, self._plans, self._rng, self._report = system, plans, rng, report
        self._last_end_s = 0.0

    async def run(self, num_live: int, seconds: float, on_progress: Callable[[float], None]) -> None:
        started_s = self._last_end_s = time.monotonic()
        until_s = started_s + seconds
        slots = [asyncio.create_task(self._slot(until_s)) for _ in range(num_live)]
        try:
            while any(not slot.done() for slot in slots):
                await asyncio.wait(slots, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
                for slot in slots:
                    if slot.done():
                        slot.result()
                self._system.controller.check_integrity()
                now_s = time.monotonic()
                on_progress(min(1.0, (now_s - started_s) / seconds))
                if now_s - self._last_end_s > MAX_SILENCE_S:
                    stats = await self._system.controller.stats()
                    raise AssertionError(f"no program ended for {MAX_SILENCE_S:g} s: {stats}")
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)

    async def _slot(self, until_s: float) -> None:
        """One program after another; at least one."""
        while True:
            plan, is_cancelled = self._rng.choice(self._plans), self._rng.random() < CANCEL_SHARE
            run = await self._system.start(PROGRAM, plan=plan.steps)
            canceller = asyncio.create_task(self._cancel(run, self._rng.random())) if is_cancelled else None
            outcome = await run.outcome()
            if canceller is not None:
                await canceller
            self._last_end_s = time.monotonic()
            self._judge(plan, outcome, is_cancelled)
            if time.monotonic() >= until_s:
                return

    async def _cancel(self, run: RunningRun, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await run.launcher.cancel(run.run_id)

    def _judge(self, plan: Plan, outcome: Outcome, is_cancelled: bool) -> None:
        code, error = outcome.final.code, outcome.final.error
        why = "" if error is None else f"{error.type}: {error.message}"
        self._report.ended[code] += 1
        match code:
            case "ok":
                if not is_answer(outcome.final.result, plan.answer):
                    self._report.wrong.append(f"{plan.steps} said {outcome.final.result}, alone {plan.answer}")
                return
            case "cancelled" if is_cancelled:
                return
            case "program_error" if plan.answer is None and "as planned" in why:
                return
        is_of_fault = "injected" in why or why.startswith("Poisoned")
        self._report.num_of_fault += is_of_fault
        if not is_of_fault:
            self._report.wrong.append(f"{plan.steps} ended as {code}: {why}\n{error and error.traceback}")


def is_answer(result: Any, answer: list[tuple[tuple[int, ...], tuple[float, ...]]] | None) -> bool:
    if answer is None or len(result) != len(answer):
        return False
    return all(
        tuple(tokens) == own
        and all(abs(one - other) <= TOLERANCE + UNITS * abs(other) for one, other in zip(found, logprobs, strict=True))
        for (tokens, found), (own, logprobs) in zip(result, answer, strict=True)
    )


async def soak(
    seed: int,
    seconds: float,
    *,
    num_live: int = 1000,
    num_blocks: int = 256,
    num_plans: int = 60,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Report:
    """Everything is checked at the end: what is wrong is in the report, what leaked or is stuck an AssertionError."""
    report = Report(seed)
    plans = make_catalogue(random.Random(seed), num_plans)
    inner = TorchExecutor(byte_model(), num_blocks=num_blocks, num_slots=64, num_threads=1)
    executor = FaultyExecutor(inner, random.Random(seed + 1), report)
    try:
        runtime = RuntimeConfig(allows_native=True, needs_wasm=False)
        async with system_over(executor, byte_text(executor), runtime=runtime, control=ControlConfig()) as system:
            await Soak(system, plans, random.Random(seed + 2), report).run(num_live, seconds, on_progress)
    finally:
        executor.close()
    assert report.num_of_fault <= report.num_calls_failed
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Soaks the whole system over the byte model.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long programs are started (10)")
    parser.add_argument("--programs", type=int, default=1000, help="how many are live at once (1000)")
    parser.add_argument("--blocks", type=int, default=256, help="KV pages for all of them (256)")
    parser.add_argument("--seed", type=int, default=None, help="a random one is taken and printed")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    out = Console()
    out.print(f"seed {seed}: {arguments.programs} programs, {arguments.blocks} pages, {arguments.minutes:g} minutes")
    columns = (TextColumn("soak"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("soak", total=1.0)
        report = asyncio.run(
            soak(
                seed,
                60 * arguments.minutes,
                num_live=arguments.programs,
                num_blocks=arguments.blocks,
                on_progress=lambda fraction: progress.update(bar, completed=fraction),
            )
        )
    out.print(str(report))
    for one in report.wrong[:5]:
        out.print(f"wrong: {one}", markup=False)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
