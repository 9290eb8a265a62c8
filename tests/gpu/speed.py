"""How fast the engine and the server are on this GPU, at Llama-3 sizes with random weights: one dated report.

Each section has a name and a budget of seconds (`figures`); `--only tpot,prefill` runs some, `--seconds` bounds all of
them together. Sections of one model that measure at control share its engine, in a process of their own; a section that
fails or does not end in its time says so in the report, and the others run.
"""

import argparse
import asyncio
import datetime
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import SECTIONS
from figures.report import Bench, Section
from figures.streams import system_over

from loopwright.core.no_collecting import collect_seldom

START_S = 40.0  # what a process takes until it measures: imports, weights, graphs
HUNG_S = 20.0  # and what it may take after its time


def groups(sections: Sequence[Section], shapes: Sequence[str]) -> Iterator[tuple[str, list[Section]]]:
    """What one process does: all sections that share a model's engine, or one other. `shapes` in place of their own."""
    models = {one.name: one.shapes if not shapes or one.shapes == ("",) else shapes for one in sections}
    for shape in dict.fromkeys(shape for one in sections for shape in models[one.name] if one.shares_system):
        yield shape, [one for one in sections if one.shares_system and shape in models[one.name]]
    for one in sections:
        if not one.shares_system:
            yield from ((shape, [one]) for shape in models[one.name])


def run_all(arguments: argparse.Namespace, chosen: Sequence[Section]) -> tuple[list[str], bool]:
    """The report's lines, and whether all went well."""
    lines, is_well = [], True
    ends_s = time.monotonic() + arguments.seconds
    for shape, sections in groups(chosen, arguments.shapes):
        left_s = ends_s - time.monotonic()
        names = ",".join(one.name for one in sections)
        if left_s < START_S / 2:
            lines += _said(f"\n{names} of {shape or 'this machine'}: left out, {left_s:.0f} s are left")
            continue
        budget_s = min(left_s, START_S + sum(one.budget_s for one in sections))
        words = ["--in-process", "--only", names, "--seconds", f"{budget_s:.0f}", "--device", arguments.device]
        words += ["--seed", str(arguments.seed), *(["--shapes", shape] if shape else [])]
        began_s = time.monotonic()
        status = _run_process(words, budget_s + HUNG_S, lines)
        lines += _said(f"\n({names} of {shape or 'this machine'}: {time.monotonic() - began_s:.0f} s)")
        if status:
            is_well = False
            lines += _said(f"FAILED: {names} of {shape}: the process ended with {status}")
    return lines, is_well


def _run_process(words: Sequence[str], limit_s: float, lines: list[str]) -> int:
    """The exit status; one that is not done in its time is ended."""
    process = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines += _said(line.rstrip("\n"))
        return process.wait()
    finally:
        timer.cancel()
        process.kill()


def _said(line: str) -> list[str]:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return [line]


async def run_here(arguments: argparse.Namespace, sections: Sequence[Section]) -> bool:
    """Runs sections of one model in this process. Whether all went well."""
    ends_s, is_well = time.monotonic() + arguments.seconds, True
    bench = Bench(next(iter(arguments.shapes), ""), arguments.device, arguments.seed)
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


def chosen_sections(only: str, skip: str) -> list[Section]:
    """In the order of `only`, or all. Raises ValueError for a name that there is not."""
    known = {one.name: one for one in SECTIONS}
    names = only.split(",") if only else list(known)
    left_out = skip.split(",") if skip else []
    if unknown := [name for name in (*names, *left_out) if name not in known]:
        raise ValueError(f"there is no section {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in names if name not in left_out]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="a file for the report")
    parser.add_argument("--only", default="", metavar="A,B", help="these sections, the most important first")
    parser.add_argument("--skip", default="", metavar="A,B", help="all but these sections")
    parser.add_argument("--shapes", nargs="+", default=[], help="these models in place of each section's own")
    parser.add_argument("--seconds", type=float, default=470.0, help="for everything; default: 470")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and prompts")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try the sections")
    parser.add_argument("--list", action="store_true", help="the sections, their models and budgets")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        sections = chosen_sections(arguments.only, arguments.skip)
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        for one in sections:
            sys.stdout.write(f"{one.name:<12}{one.budget_s:4.0f} s  {', '.join(one.shapes):<30}{one.title}\n")
        return 0
    if arguments.in_process:
        collect_seldom()  # as a server does
        return 0 if asyncio.run(run_here(arguments, sections)) else 1
    import torch  # noqa: PLC0415 (a process that only lists or starts others need not wait for it)

    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(f"error: torch {torch.__version__} sees no CUDA device\n")
        return 1
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    lines = _said(f"# {name}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, torch {torch.__version__}")
    found, is_well = run_all(arguments, sections)
    if arguments.report is not None:
        arguments.report.write_text("\n".join([*lines, *found]) + "\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
