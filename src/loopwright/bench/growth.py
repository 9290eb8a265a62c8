"""How a decode step grows with the number of sequences and with their contexts. Never samples or schedules itself.

One prompt runs, and each sequence gets its KV page by page as a copy: memory of its own, which a step has to read,
without a prompt of its own. Run by `command`. Cases: `batch=B/context=C`, a step in which all sequences decode, and
beside each the floor: its weights and its KV read once from memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from loopwright.bench.decode import make_tokens
from loopwright.bench.machine import read_bandwidth
from loopwright.bench.rows import STEP_MS, Row, case_name, measured
from loopwright.bench.sessions import QUEUE, Caller, segment_call
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite, System
from loopwright.bench.together import all_of
from loopwright.core.calls import (
    AllocatePages,
    CopyPage,
    CreateQueue,
    ExportPages,
    ForwardText,
    FreePages,
    Generate,
    ImportPages,
)
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.control import Control
from loopwright.core.errors import BadRequest, InternalError, Unavailable
from loopwright.core.ids import PageName

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (64, 256, 1024, 4096)  # whole pages
MAX_TOKENS_AT_ONCE = 64 * 1024  # of all sequences
NUM_STEPS = 16  # that are timed, at least
NUM_BLOCKS = 6144  # for the largest case, the prompt and what sequences generate

_NUM_TOKENS = NUM_STEPS + 8  # of a sequence: the first may begin some steps before the last
_IMPORTED, _OWN = 0, 1 << 20  # where names of pages begin


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    clock, cells = SystemClock(), _cells()
    steps_s: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    async with open_system(options.model, num_blocks=NUM_BLOCKS) as system:
        bandwidth = read_bandwidth(clock, system.num_threads)
        page_size = system.control.models()[0].page_size
        with Caller(system.control, "growth") as prompted, _progress(len(cells) * options.num_rounds) as advance:
            await _run_prompt(system.control, prompted, page_size)
            for context in CONTEXTS:
                sizes = [batch for batch, one in cells if one == context]
                with ExitStack() as stack:
                    sequences = [
                        await _copied(stack, system.control, page_size, context, number) for number in range(max(sizes))
                    ]
                    for batch in sizes * options.num_rounds:
                        steps_s[batch, context].append(await _step_s(sequences[:batch], clock, page_size, context))
                        advance(f"{batch} sequences of {context} tokens")
        rows = [row for cell in cells for row in _rows(system, bandwidth, *cell, steps_s[cell])]
    if options.plot is not None:
        draw(rows, options.plot)
    return Measured(rows=tuple(rows), workload={})


def _cells() -> list[tuple[int, int]]:
    """Batch and context."""
    return [(batch, one) for one in CONTEXTS for batch in BATCH_SIZES if batch * one <= MAX_TOKENS_AT_ONCE]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr."""
    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("a prompt", total=total)
        yield lambda done: bars.update(task, advance=1, description=done)


async def _run_prompt(control: Control, prompted: Caller, page_size: int) -> None:
    """The longest context's KV, lent under the name of each context's length."""
    longest = max(CONTEXTS)
    tokens = tuple(make_tokens(longest, control.models()[0].vocab_size, seed=longest))
    await prompted.call(CreateQueue(queue=QUEUE))
    await prompted.call(
        ForwardText(
            queue=QUEUE, pages=(), grow_from=PageName(0), kv_len=0, tokens=tokens, positions=tuple(range(longest))
        )
    )
    for context in CONTEXTS:
        pages = _names(0, context // page_size)
        await prompted.call(ExportPages(queue=QUEUE, name=str(context), pages=pages, positions=tuple(range(context))))


async def _copied(stack: ExitStack, control: Control, page_size: int, context: int, number: int) -> Caller:
    """A sequence whose `_OWN` pages hold a copy of the context's KV."""
    sequence = stack.enter_context(Caller(control, f"growth-{context}-{number}"))
    imported, own = _names(_IMPORTED, context // page_size), _names(_OWN, context // page_size)
    await sequence.call(CreateQueue(queue=QUEUE))
    await sequence.call(ImportPages(queue=QUEUE, name=str(context), pages=imported))
    await sequence.call(AllocatePages(queue=QUEUE, pages=own))
    for source, target in zip(imported, own, strict=True):
        sequence.begin(CopyPage(queue=QUEUE, source=source, target=target, size=page_size))
    await sequence.call(FreePages(queue=QUEUE, pages=imported))
    return sequence


async def _step_s(sequences: Sequence[Caller], clock: Clock, page_size: int, context: int) -> float:
    """Seconds of a step in which all sequences decode: the median of those from the first token of the last one to
    begin to the last token of the first one to end."""
    num_pages = context // page_size
    call = msgspec.structs.replace(
        segment_call(_NUM_TOKENS),
        pages=_names(_OWN, num_pages), grow_from=PageName(_OWN + num_pages), kv_len=context, positions=(context,),
        progress=True,
    )  # fmt: skip
    times_s = await all_of(_token_times(sequence, call, clock) for sequence in sequences)
    begin_s, end_s = max(one[0] for one in times_s), min(one[-1] for one in times_s)
    together = [at for at in times_s[-1] if begin_s <= at <= end_s]
    if len(together) <= NUM_STEPS:
        raise InternalError(f"{len(sequences)} sequences had {len(together)} of {_NUM_TOKENS} steps together")
    return median(after - before for before, after in pairwise(together))


async def _token_times(sequence: Caller, call: Generate, clock: Clock) -> list[float]:
    segment, times_s = await sequence.timed(call, clock)
    if len(segment.tokens) != call.max_tokens:
        raise InternalError(f"a segment of {call.max_tokens} tokens ended as {segment.reason!r}")
    grown = segment.num_pages - len(call.pages)
    await sequence.call(FreePages(queue=QUEUE, pages=_names(call.grow_from, grown)))
    return times_s


def _names(first: int, count: int) -> tuple[PageName, ...]:
    return tuple(PageName(first + number) for number in range(count))


def _rows(system: System, bandwidth: float, batch: int, context: int, steps_s: Sequence[float]) -> tuple[Row, Row]:
    case = case_name(batch=batch, context=context)
    step = measured("growth", case, STEP_MS, [1e3 * one for one in steps_s])
    return step, _floor(system, bandwidth, batch, context)


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
