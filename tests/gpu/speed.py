"""How fast the engine is on this GPU: decoding and prompts through control, at Llama-3 sizes with random weights.

`make gpu` prints a table and writes a report. Streams are counted at control's sessions, as the model worker has them;
the floor is reading the weights once a step at the measured bandwidth of a copy.
"""

import argparse
import asyncio
import datetime
import itertools
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from loopwright.control.controller import Controller
from loopwright.control.scheduler import ControlConfig
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import CreateQueue, DistributionRequest, Generate, Sampling
from loopwright.core.clock import SystemClock
from loopwright.core.control import ControlLimits
from loopwright.core.errors import from_info
from loopwright.core.ids import CallId, PageName, QueueName, RunId
from loopwright.core.model_info import ModelInfo
from loopwright.core.results import Progress, Segment
from loopwright.engine.cuda.dummy import dummy_model, shape_config
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.executor import create_executor

NUM_IN, NUM_OUT = 128, 128
BATCHES = (1, 32, 128, 256)
SHAPES = ("llama-1b", "llama-8b")
SAMPLINGS = {
    "temperature": Sampling(temperature=1.0, seed=1),
    "top_k 50": Sampling(temperature=1.0, top_k=50, seed=1),
    "frequency penalty": Sampling(temperature=1.0, frequency_penalty=0.5, seed=1),
    "top_logprobs 20": Sampling(top_logprobs=20),
}
_LIMITS = ControlLimits(max_pages=1 << 20, max_open_calls=1 << 16)
_numbers = itertools.count()


@dataclass(frozen=True)
class Timing:
    """One round of a batch. `tpot_s` is the mean over streams of (last token - first token) / (tokens - 1), `steady_s`
    the median time between two tokens of a stream once all have begun, `ttft_s` the median time to the first token."""

    tpot_s: float
    steady_s: float
    ttft_s: float
    host_s: float  # CPU of this process for each step, waiting included
    tokens_per_s: float


@asynccontextmanager
async def control_over(shape: str, max_batch_tokens: int) -> AsyncIterator[tuple[Controller, int]]:
    """Control over random weights of that shape on the GPU, and the bytes of them that a step reads."""
    executor = create_executor(
        Path(), num_blocks=0, num_slots=16, shape=shape, device="cuda", dtype="auto", max_tokens=max_batch_tokens
    )
    sizes = executor.shape
    info = ModelInfo(
        name=shape, architecture="llama", traits=executor.traits, vocab_size=sizes.vocab_size,
        max_context=sizes.max_context, page_size=sizes.block_size, num_pages=sizes.num_blocks, eos_ids=(), bos_id=None,
        has_chat_template=False, quantization="dummy", weights_sha256="", engine=executor.computed_by,
    )  # fmt: skip
    config = ControlConfig(max_batch_tokens=max_batch_tokens, prefix_cache=False)
    controller = Controller(executor, (), info, SystemClock(), config)
    serving = asyncio.create_task(controller.serve())
    try:
        yield controller, executor.step_weight_bytes
    finally:
        serving.cancel()
        executor.close()
        del executor, controller
        torch.cuda.empty_cache()


async def run_batch(
    controller: Controller, num_streams: int, num_in: int = NUM_IN, num_out: int = NUM_OUT,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
) -> Timing:  # fmt: skip
    """All streams at once, as queues of one session."""
    session = controller.open(RunId(f"speed-{next(_numbers)}"), _LIMITS)
    arrivals: dict[int, list[tuple[float, int]]] = {stream: [] for stream in range(num_streams)}
    rng = np.random.default_rng(num_streams)
    calls = [
        Generate(
            queue=QueueName(stream), pages=(), grow_from=PageName(stream << 16), kv_len=0,
            tokens=tuple(rng.integers(1000, 100_000, num_in).tolist()), positions=tuple(range(num_in)),
            sampling=sampling, max_tokens=num_out, progress=True,
        )
        for stream in range(num_streams)
    ]  # fmt: skip
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for stream, call in enumerate(calls):
        session.submit(CallId(2 * stream), CreateQueue(queue=QueueName(stream)))
        session.submit(CallId(2 * stream + 1), call)
    num_open = num_streams
    while num_open:
        completions = await session.receive()
        now_s = time.perf_counter()
        for one in completions:
            if one.error is not None:
                raise from_info(one.error)
            if isinstance(one.result, Progress | Segment):
                arrivals[one.call_id // 2].append((now_s, len(one.result.tokens)))
            num_open -= isinstance(one.result, Segment)
    ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
    session.close()
    return _timing(list(arrivals.values()), began_s, ended_s, cpu_s, num_out)


def _timing(
    arrivals: Sequence[Sequence[tuple[float, int]]], began_s: float, ended_s: float, cpu_s: float, num_out: int
) -> Timing:
    firsts, lasts = [one[0][0] for one in arrivals], [one[-1][0] for one in arrivals]
    all_begun_s = max(firsts)
    times = [when for when, _ in arrivals[0] if when >= all_begun_s]
    gaps = np.diff(times) if len(times) > 1 else np.zeros(1)
    return Timing(
        tpot_s=mean((last - first) / max(1, num_out - 1) for first, last in zip(firsts, lasts, strict=True)),
        steady_s=float(np.median(gaps)),
        ttft_s=median(firsts) - began_s,
        host_s=cpu_s / num_out,
        tokens_per_s=len(arrivals) * num_out / (ended_s - began_s),
    )


async def measure(shape: str, batches: Sequence[int], rounds: int, lines: list[str]) -> None:
    async with control_over(shape, 8192) as (controller, weights):
        floor_s = weights / _copy_bandwidth()
        say(lines, f"\n{shape}: {controller.models()[0].engine}; {weights / 1e9:.2f} GB of weights a step, floor "
                   f"{1e3 * floor_s:.2f} ms")  # fmt: skip
        say(lines, "| batch | TPOT ms | steady ms | by the floor | TTFT ms | tokens/s | CPU ms a step |")
        say(lines, "|---|---|---|---|---|---|---|")
        await run_batch(controller, max(batches), num_out=8)  # warm-up
        for batch in batches:
            best = min([await run_batch(controller, batch) for _ in range(rounds)], key=lambda one: one.tpot_s)
            say(
                lines,
                f"| {batch} | {1e3 * best.tpot_s:.3f} | {1e3 * best.steady_s:.3f} | {best.steady_s / floor_s:.2f} | "
                f"{1e3 * best.ttft_s:.1f} | {best.tokens_per_s:.0f} | {1e3 * best.host_s:.3f} |",
            )
        for name, sampling in SAMPLINGS.items():
            one = await run_batch(controller, 32, sampling=sampling)
            say(lines, f"batch 32, {name}: TPOT {1e3 * one.tpot_s:.3f} ms, steady {1e3 * one.steady_s:.3f}")
        for num_streams, num_in in ((64, 128), (64, 1024)):
            prompt = min([await run_batch(controller, num_streams, num_in, 1) for _ in range(rounds)],
                         key=lambda one: -one.tokens_per_s)  # fmt: skip
            say(lines, f"prompts, {num_streams} of {num_in} tokens: {prompt.tokens_per_s * num_in:.0f} tokens/s")


def noise(lines: list[str]) -> None:
    """How far a row's log-probabilities are from float32, and from its own in other batches: the model of 1B, one row
    of 64 tokens among equal prompts."""
    config = shape_config("llama-1b")
    with torch.inference_mode():
        model = dummy_model(config, torch.device("cuda"), torch.bfloat16)
        found = {}
        for dtype, sizes in ((torch.float32, (1,)), (torch.bfloat16, BATCHES)):
            is_fast = dtype == torch.bfloat16
            parts = DeviceParts.make(model, num_blocks=256 * 6, device=torch.device("cuda"), dtype=dtype,
                                     has_kernels=is_fast)  # fmt: skip
            runner = DeviceRunner(model, parts, num_slots=1, max_rows=256)
            tokens = np.random.default_rng(0).integers(1000, 100_000, 65).tolist()
            for size in sizes:
                tables = [[6 * row + place for place in range(6)] for row in range(size)]
                for start in range(0, size, 32):
                    some = tables[start : start + 32]
                    runner.run(Batch(rows=[ForwardRow(table, 0, range(64), tokens[:64]) for table in some]))
                ask = [DistributionRequest(k=1, logits=True)]
                rows = [ForwardRow(table, 64, [64], tokens[64:], distributions=ask if row == 0 else (),
                                   sampling=None if row == 0 else Sampling())
                        for row, table in enumerate(tables)]  # fmt: skip
                logits = np.frombuffer(runner.run(Batch(rows=rows)).rows[0].distributions[0].logits or b"", "<f4")
                found[dtype, size] = logits - np.logaddexp.reduce(logits)
            del runner, parts
    reference, alone = found[torch.float32, 1], found[torch.bfloat16, 1]
    spread = float(reference.std())
    for size in BATCHES:
        one = found[torch.bfloat16, size]
        (far, most), (near, least) = (
            (np.sqrt(np.mean((one - other) ** 2)) / spread, np.abs(one - other).max()) for other in (reference, alone)
        )
        say(lines, f"noise at batch {size}: {far:.4f} of the spread ({spread:.2f}) from float32, largest {most:.3f}; "
                   f"from batch 1 {near:.4f}, largest {least:.3f}")  # fmt: skip


def _copy_bandwidth() -> float:
    """Bytes a second, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.numel() / median(times)


def say(lines: list[str], line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    lines.append(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="a file for the report")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write(f"error: torch {torch.__version__} sees no CUDA device\n")
        return 1
    lines: list[str] = []
    now = datetime.datetime.now(datetime.UTC)
    say(lines, f"# {torch.cuda.get_device_name()}, {now:%Y-%m-%d %H:%M} UTC, torch {torch.__version__}")
    say(lines, f"prompt {NUM_IN}, output {NUM_OUT}, greedy, through control, best of {arguments.rounds} rounds")
    for shape in arguments.shapes:
        asyncio.run(measure(shape, arguments.batches, arguments.rounds, lines))
    noise(lines)
    if arguments.report is not None:
        arguments.report.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
