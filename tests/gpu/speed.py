"""Whether the engine and the server are right on these GPUs, and how fast, at Llama-3 sizes with random weights: one
dated report.

Each section has a name and a budget of seconds (`figures`); `--only tpot,prefill` runs some, `--seconds` bounds all of
them together. Sections of one model that measure at control share its engine, in a process of their own; a section that
fails or does not end in its time says so in the report, and the others run. With several GPUs there is a lane for each;
what takes several runs by itself, at the end.
"""

import argparse
import asyncio
import datetime
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import side_by_side
from figures import PLAN, SECTIONS
from figures.hardware import hardware
from figures.report import Bench, Section
from figures.streams import system_over
from lanes import Job, Lane, Outcome, ended_by_signal, make_lanes, run_lanes
from written import Report

from loopwright.core.no_collecting import collect_seldom

MAX_LANES = 2  # of more GPUs the rest would wait for cores
TWO_GPU_TESTS_S = 16.0
START_S, IMPORTS_S = 40.0, 15.0  # until sections that share an engine measure; until others begin


def jobs_of(names: Sequence[str], shapes: Sequence[str] = ()) -> Iterator[Job]:
    """What there is to do of these sections, the most important first; `tpot:llama-1b` is a section of one model.
    `shapes` in place of the plan's own."""
    known, seen = {one.name: one for one in SECTIONS}, set[tuple[str, str]]()
    for shape, sections in PLAN:
        for model in shapes if shapes and shape else [shape]:
            chosen = [one.name for one in sections if (model, one.name) not in seen
                      and (one.name in names or f"{one.name}:{model}" in names)]  # fmt: skip
            seen |= {(model, name) for name in chosen}
            if chosen:
                num_gpus = max(known[name].num_gpus for name in chosen)
                start_s = START_S if all(known[name].shares_system for name in chosen) else IMPORTS_S
                yield Job(model, tuple(chosen), sum(known[name].budget_s for name in chosen), num_gpus, start_s)


def run_all(arguments: argparse.Namespace, jobs: Sequence[Job], num_gpus: int, report: Report) -> bool:
    """Whether all went well. What takes several GPUs has its time kept for it."""
    ends_s = time.monotonic() + arguments.seconds
    is_well = True
    alone = [job for job in jobs if job.num_gpus > 1 and (arguments.device == "cpu" or job.num_gpus <= num_gpus)]

    def done(job: Job, outcome: Outcome) -> None:
        nonlocal is_well
        is_well &= not outcome.status
        report.done(job, outcome)
        say(*(outcome.lines or [f"\n{job}: left out, {outcome.why_not}"]), f"\n({job}: {outcome.took_s:.0f} s)")

    for job in jobs:
        if job.num_gpus > 1 and job not in alone:
            done(job, Outcome(why_not=f"torch sees {num_gpus} GPU, and it takes {job.num_gpus}"))
    if arguments.tests:
        is_well &= tests(report, side_by_side.PARTS, num_gpus, ends_s)
    kept_s = sum(job.start_s + job.budget_s for job in alone) if len(alone) < len(jobs) else 0.0
    kept_s = min(kept_s, arguments.seconds / 2)
    kept_s += TWO_GPU_TESTS_S if arguments.tests and num_gpus > 1 else 0.0
    words = partial(words_of, arguments, report)
    lanes = make_lanes(arguments.lanes or max(1, min(MAX_LANES, num_gpus)), arguments.device)
    run_lanes([job for job in jobs if job.num_gpus == 1], lanes, ends_s - kept_s, words, done)
    if arguments.tests and num_gpus > 1:
        is_well &= tests(report, side_by_side.ALONE, num_gpus, ends_s)
    run_lanes(alone, [Lane({})], ends_s, words, done)
    return is_well


def tests(report: Report, parts: Sequence[tuple[str, str]], num_gpus: int, ends_s: float) -> bool:
    passed, said = side_by_side.run_parts(
        parts, num_gpus, max(1.0, min(side_by_side.LIMIT_S, ends_s - time.monotonic()))
    )
    report.tests += said
    report.save()
    return passed


def words_of(arguments: argparse.Namespace, report: Report, job: Job, seconds: float) -> list[str]:
    """The command that does a job."""
    words = [sys.executable, __file__, "--in-process", "--only", ",".join(job.names), "--seconds", f"{seconds:.0f}"]
    words += ["--device", arguments.device, "--seed", str(arguments.seed)]
    return [*words, "--found", str(report.found_at), *(["--shapes", job.shape] if job.shape else [])]


def say(*lines: str) -> None:
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


async def run_here(arguments: argparse.Namespace, sections: Sequence[Section]) -> bool:
    """Runs sections of one model in this process. Whether all went well."""
    ends_s, is_well = time.monotonic() + arguments.seconds, True
    bench = Bench(next(iter(arguments.shapes), ""), arguments.device, arguments.seed, found_at=arguments.found)
    async with AsyncExitStack() as stack:
        if any(one.shares_system for one in sections):
            bench.system = await stack.enter_async_context(system_over(bench.shape, bench.device))
        for one in sections:
            budget_s = min(one.budget_s, ends_s - time.monotonic())
            bench.say(f"\n## {one.title}{bench.shape and f': {bench.shape}'}\n")
            if budget_s < one.budget_s / 10:
                bench.say("(left out: the time is over)")
                continue
            bench.ends_s = time.monotonic() + budget_s
            try:
                async with asyncio.timeout(budget_s):
                    await one.measure(bench)
            except TimeoutError:
                bench.say(f"(cut off after {budget_s:.0f} s)")
            except Exception as error:  # noqa: BLE001 (the others go on)
                is_well = False
                bench.say(f"FAILED: {one.name}: {type(error).__name__}: {error}")
                traceback.print_exc()
    return is_well


def chosen_names(only: str, skip: str) -> list[str]:
    """What `jobs_of` takes. Raises ValueError for a name that there is not."""
    known = [one.name for one in SECTIONS]
    models = {f"{one.name}:{shape}" for shape, some in PLAN for one in some if shape}
    names = only.split(",") if only else known
    left_out = skip.split(",") if skip else []
    if unknown := [name for name in (*names, *left_out) if name not in {*known, *models}]:
        raise ValueError(
            f"there is no section {', '.join(unknown)}; known are {', '.join(known)}, and tpot:llama-1b, say"
        )
    return [name for name in names if name not in left_out]


def parsed() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="a file for the report; figures and a picture beside it")
    parser.add_argument("--tests", action="store_true", help="the tests of this folder first")
    parser.add_argument("--only", default="", metavar="A,B", help="these sections; tpot:llama-1b is of one model")
    parser.add_argument("--skip", default="", metavar="A,B", help="all but these sections")
    parser.add_argument("--shapes", nargs="+", default=[], help="these models in place of the plan's own")
    parser.add_argument("--seconds", type=float, default=575.0, help="for everything; default: 575")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and prompts")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try the sections")
    parser.add_argument("--lanes", type=int, default=0, metavar="N", help="so many at once, not one for each of 2 GPUs")
    parser.add_argument("--commit", default="", help="what is measured, for a tree without git")
    parser.add_argument("--list", action="store_true", help="the sections, their models and budgets")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        return arguments, chosen_names(arguments.only, arguments.skip)
    except ValueError as error:
        parser.error(str(error))


def main() -> int:
    arguments, names = parsed()
    if arguments.list:
        for one in SECTIONS:
            shapes = ", ".join(shape for shape, some in PLAN if one in some)
            say(f"{one.name:<12}{one.budget_s:4.0f} s  {shapes:<46}{one.title}")
        return 0
    if arguments.in_process:
        collect_seldom()  # as a server does
        return 0 if asyncio.run(run_here(arguments, [one for one in SECTIONS if one.name in names])) else 1
    import torch  # noqa: PLC0415 (a process that only lists or starts others need not wait for it)

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(f"error: torch {torch.__version__} sees no CUDA device\n")
        return 1
    made_on = hardware(arguments.device, arguments.commit)
    when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    say(f"# {made_on['device']}, {when}, {made_on['versions']}, {made_on['commit']}")
    jobs = list(jobs_of(names, arguments.shapes))
    num_gpus = torch.cuda.device_count() if arguments.device == "cuda" else 1
    with ended_by_signal(), tempfile.TemporaryDirectory() as folder:
        report = Report(arguments.report or Path(folder, "report.md"), made_on, when, jobs)
        is_well = run_all(arguments, jobs, num_gpus, report)
        say("", *report.summary())
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
