"""How fast tokens come out: control and engine together, without programs and HTTP. Never samples or schedules itself.

It opens one session of control for each sequence and submits one greedy segment in each, so what is measured is the
scheduler, the batches and the model. Run by `command`. Cases: `batch=N`, sequences that start together, 128 tokens in
and 128 out, no stop; `case=floor/batch=N`, what memory bandwidth allows at best; `prompt=N`, the tokens of
one long prompt over the time to its first token.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from loopwright.bench.machine import read_bandwidth
from loopwright.bench.rows import TOKENS_PER_S, TTFT_MS, Row, case_name, measured
from loopwright.bench.suite import Measured, OpenSystem, Options, Suite, System
from loopwright.bench.together import all_of
from loopwright.core.calls import CreateQueue, Generate, Sampling
from loopwright.core.clock import Clock, SystemClock
from loopwright.core.control import Control, ControlLimits, Session
from loopwright.core.errors import InternalError, from_info
from loopwright.core.ids import CallId, PageName, QueueName, RunId
from loopwright.core.results import Progress, Segment

BATCH_SIZES = (1, 8, 32)
NUM_TOKENS_IN = 128
NUM_TOKENS_OUT = 128
PROMPT_LENGTHS = (512, 2048)

_QUEUE = QueueName(0)
_CREATE, _GENERATE = CallId(1), CallId(2)


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """One round of one batch. `tokens_per_s` counts the tokens that came out, from the first submit to the last end, so
    prefill is in it; `ttft_s` is the median over the sequences of submit → first token."""

    tokens_per_s: float
    ttft_s: float


async def measure(options: Options, open_system: OpenSystem) -> Measured:
    clock = SystemClock()
    async with open_system(options.model) as system:
        rows = await measure_batches(system.control, clock, options.num_rounds)
        rows += await measure_prompts(system.control, clock, options.num_rounds)
        rows += floor_rows(system, read_bandwidth(clock, system.num_threads))
        vocab_size = system.control.models()[0].vocab_size
        prompts = make_prompts(max(BATCH_SIZES), vocab_size)
        workload = {
            "model_path": str(system.model_path),
            "dtype": system.dtype,
            "num_threads": system.num_threads,
            "num_rounds": options.num_rounds,
            "batch_sizes": BATCH_SIZES,
            "num_tokens_out": NUM_TOKENS_OUT,
            "prompts": prompts,
            "long_prompts": [make_tokens(n, vocab_size, seed=n) for n in PROMPT_LENGTHS],
        }
    return Measured(rows=tuple(rows), workload=workload)


SUITE = Suite(name="decode", title="bench decode: 128 tokens in, 128 out, greedy, through control", measure=measure)


async def measure_batches(control: Control, clock: Clock, num_rounds: int) -> list[Row]:
    """Rows of the `batch=N` cases; each value is the median over the rounds. The sizes take turns in each round, so
    that a machine that slows down slows all of them."""
    prompts = make_prompts(max(BATCH_SIZES), control.models()[0].vocab_size)
    await run_batch(control, clock, prompts[:1])  # warm-up
    timings: dict[int, list[BatchTiming]] = {size: [] for size in BATCH_SIZES}
    for _ in range(num_rounds):
        for size in BATCH_SIZES:
            timings[size].append(await run_batch(control, clock, prompts[:size]))
    rows: list[Row] = []
    for size, rounds in timings.items():
        case = case_name(batch=size)
        rows.append(measured("decode", case, TOKENS_PER_S, [one.tokens_per_s for one in rounds]))
        rows.append(measured("decode", case, TTFT_MS, [1e3 * one.ttft_s for one in rounds]))
    return rows


async def measure_prompts(control: Control, clock: Clock, num_rounds: int) -> list[Row]:
    """Rows of the `prompt=N` cases: tokens of one prompt alone, a second, until its first token came."""
    vocab_size, rows = control.models()[0].vocab_size, list[Row]()
    for length in PROMPT_LENGTHS:
        prompt = make_tokens(length, vocab_size, seed=length)
        timings = [await run_batch(control, clock, [prompt], num_out=1) for _ in range(num_rounds)]
        speeds = [length / one.ttft_s for one in timings]
        rows.append(measured("decode", case_name(prompt=length), TOKENS_PER_S, speeds))
    return rows


def floor_rows(system: System, bandwidth: float) -> list[Row]:
    """The most tokens a second that reading every weight once a step allows, at `bandwidth` bytes a second. KV and
    activations are not counted, and where the batch makes the step compute-bound the floor is far away."""
    steps_per_s = bandwidth / system.step_weight_bytes
    return [
        measured("decode", case_name(case="floor", batch=size), TOKENS_PER_S, [size * steps_per_s])
        for size in BATCH_SIZES
    ]


async def run_batch(
    control: Control, clock: Clock, prompts: Sequence[Sequence[int]], num_out: int = NUM_TOKENS_OUT
) -> BatchTiming:
    """Runs all prompts at once, each in a session of its own. Raises what a segment fails with."""
    sessions = [control.open(RunId(f"bench-{index}"), ControlLimits()) for index in range(len(prompts))]
    try:
        started_s = clock.now_s()
        first_tokens_s = await all_of(
            _generate(session, prompt, num_out, clock) for session, prompt in zip(sessions, prompts, strict=True)
        )
        elapsed_s = clock.now_s() - started_s
    finally:
        for session in sessions:
            session.close()
    ttft_s = median(first_tokens_s) - started_s
    return BatchTiming(tokens_per_s=len(prompts) * num_out / elapsed_s, ttft_s=ttft_s)


def make_prompts(num_prompts: int, vocab_size: int) -> list[list[int]]:
    """Prompts of NUM_TOKENS_IN ids, all different from the first token on, the same every time."""
    return [make_tokens(NUM_TOKENS_IN, vocab_size, seed) for seed in range(num_prompts)]


def make_tokens(num_tokens: int, vocab_size: int, seed: int) -> list[int]:
    """Random ids. Low ones are left out where there are enough others: control tokens live there."""
    first_id = 1000 if vocab_size > 4000 else 0
    draw = random.Random(seed)
    return [draw.randrange(first_id, vocab_size) for _ in range(num_tokens)]


async def _generate(session: Session, prompt: Sequence[int], num_out: int, clock: Clock) -> float:
    """Runs one segment to its end and returns when its first token came."""
    session.submit(_CREATE, CreateQueue(queue=_QUEUE))
    session.submit(_GENERATE, _segment(prompt, num_out))
    first_token_s: float | None = None
    while True:
        for completion in await session.receive():
            if completion.error:
                raise from_info(completion.error)
            if first_token_s is None and isinstance(completion.result, Progress | Segment):
                first_token_s = clock.now_s()
            if isinstance(completion.result, Segment):
                _check(completion.result, num_out)
                assert first_token_s is not None
                return first_token_s


def _segment(prompt: Sequence[int], num_out: int) -> Generate:
    return Generate(
        queue=_QUEUE,
        pages=(),
        grow_from=PageName(0),
        kv_len=0,
        tokens=tuple(prompt),
        positions=tuple(range(len(prompt))),
        sampling=Sampling(temperature=0.0),
        max_tokens=num_out,
        progress=True,
    )


def _check(segment: Segment, num_out: int) -> None:
    if len(segment.tokens) != num_out:
        raise InternalError(f"a segment without stop gave {len(segment.tokens)} of {num_out} tokens")
