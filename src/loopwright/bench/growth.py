"""How a decode step grows with the number of sequences and with their contexts. Never samples or schedules itself.

Sequences prefill one after the other and go on decoding; when the last one decodes too, the time between its tokens is
that of a step of all of them. Run by `command`. Cases: `batch=B/context=C`, and beside each the floor: its weights and
its KV read once from memory.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from loopwright.bench.decode import make_tokens
from loopwright.bench.machine import read_bandwidth
from loopwright.bench.rows import STEP_MS, Row, case_name, measured
from loopwright.bench.sessions import QUEUE, segment_call
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite, System
from loopwright.bench.together import all_of
from loopwright.core.calls import CreateQueue
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.control import Control, ControlLimits, Session
from loopwright.core.errors import BadRequest, Unavailable, from_info
from loopwright.core.ids import CallId, RunId
from loopwright.core.results import Progress, Segment

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 256, 1024, 4096)
MAX_TOKENS_AT_ONCE = 64 * 1024  # of all sequences: prefilling more would take minutes a case
NUM_STEPS = 16  # that are timed
NUM_BLOCKS = 6144  # for the largest case and what its sequences generate

_CREATE, _GENERATE = CallId(1), CallId(2)


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    clock, rows = SystemClock(), list[Row]()
    async with open_system(options.model, num_blocks=NUM_BLOCKS) as system:
        bandwidth = read_bandwidth(clock, system.num_threads)
        for context in CONTEXTS:
            for batch in BATCH_SIZES:
                if batch * context > MAX_TOKENS_AT_ONCE:
                    continue
                steps_s = [await step_s(system.control, clock, batch, context) for _ in range(options.num_rounds)]
                case = case_name(batch=batch, context=context)
                rows.append(measured("growth", case, STEP_MS, [1e3 * one for one in steps_s]))
                rows.append(_floor(system, bandwidth, batch, context))
    if options.plot is not None:
        draw(rows, options.plot)
    return Measured(rows=tuple(rows), workload={})


async def step_s(control: Control, clock: Clock, batch: int, context: int) -> float:
    """Seconds of a step in which `batch` sequences of about `context` tokens decode: the median of NUM_STEPS."""
    vocab_size = control.models()[0].vocab_size
    num_prefill_steps = batch * (context // 256 + 2)  # that the first sequence may decode in, at most
    began = clock.now_s()  # in the names: sessions of the case before may still be closing
    sessions = [control.open(RunId(f"growth-{began}-{number}"), ControlLimits()) for number in range(batch)]
    try:
        for number, session in enumerate(sessions):
            prompt = make_tokens(context, vocab_size, seed=number)
            call = segment_call(num_prefill_steps + 2 * NUM_STEPS, prompt_len=context)
            session.submit(_CREATE, CreateQueue(queue=QUEUE))
            session.submit(_GENERATE, msgspec.structs.replace(call, tokens=tuple(prompt), progress=True))
        await all_of(_first_token(session) for session in sessions)
        times_s = await _token_times(sessions[-1], clock)
    finally:
        for session in sessions:
            session.close()
    return median(after - before for before, after in pairwise(times_s))


async def _first_token(session: Session) -> None:
    while True:
        for completion in await session.receive():
            if completion.error:
                raise from_info(completion.error)
            if isinstance(completion.result, Progress | Segment):
                return


async def _token_times(session: Session, clock: Clock) -> Sequence[float]:
    times_s: list[float] = []
    while len(times_s) <= NUM_STEPS:
        for completion in await session.receive():
            if completion.error:
                raise from_info(completion.error)
            if isinstance(completion.result, Progress):
                times_s.append(clock.now_s())
    return times_s


def _floor(system: System, bandwidth: float, batch: int, context: int) -> Row:
    num_bytes = system.step_weight_bytes + batch * context * system.kv_token_bytes
    case = case_name(case="floor", batch=batch, context=context)
    return measured("growth", case, STEP_MS, [1e3 * num_bytes / bandwidth])


def require_plots(path: Path) -> None:
    """Raises Unavailable without matplotlib, and BadRequest for a file that it cannot draw."""
    if find_spec("matplotlib") is None:
        raise Unavailable("a plot needs matplotlib, which is not installed", hint="pip install 'loopwright[plots]'")
    if path.suffix not in (".svg", ".png"):
        raise BadRequest(f"a plot is a .svg or a .png file, and not {path.name!r}", field="plot")


def draw(rows: Sequence[Row], path: Path) -> None:
    """A line for each context, over the batch, and its floor dotted."""
    from matplotlib import pyplot  # noqa: PLC0415 (an extra)

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for index, context in enumerate(CONTEXTS):
        for prefix, style in (("", "o-"), ("case=floor/", ":")):
            points = _points(rows, prefix, context)
            label: Any = f"context {context}" if not prefix else None
            axes.plot(*zip(*points, strict=True), style, color=f"C{index}", label=label)
    axes.set(xscale="log", yscale="log", xlabel="sequences", ylabel="step, ms", xticks=BATCH_SIZES)
    axes.set_xticklabels([str(size) for size in BATCH_SIZES])
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(title="dotted: weights and KV read once")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _points(rows: Sequence[Row], prefix: str, context: int) -> list[tuple[int, float]]:
    cases = {row.case: row.value for row in rows}
    names = {size: f"{prefix}{case_name(batch=size, context=context)}" for size in BATCH_SIZES}
    return [(size, cases[name]) for size, name in names.items() if name in cases]


SUITE = Suite(name="growth", title="bench growth: a decode step by batch and context", measure=measure)
