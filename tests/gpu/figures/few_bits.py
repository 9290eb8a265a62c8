"""Section: real weights in fewer bits, how good and how fast in one table, and layer by layer.

The judging is `make quality`'s, which runs without a GPU too; here its ways are the kernels. Needs SmolLM2 in the
cache folder.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from figures.report import Bench, Section
from loopwright.core.batch import Batch, DecodeRows
from loopwright.core.calls import Sampling
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.loader import load_model
from loopwright.weights import store

BATCHES = (1, 32)
NUM_STEPS = 40
NUM_WINDOWS = 4


async def quality(bench: Bench) -> None:
    """Each way is an engine of its own, one after the other."""
    sys.path[:0] = [str(Path(__file__).parents[2] / "engine"), str(Path(__file__).parents[2])]
    import quality as gate  # noqa: PLC0415 (it stands beside the engine's tests)
    import torch  # noqa: PLC0415

    path = next((one.path for one in store.list_models() if one.name.startswith("SmolLM2")), None)
    if path is None:
        bench.say(f"(left out: no SmolLM2 in {store.cache_folder()})")
        return
    model, texts = load_model(path), gate.Texts.of(path, 1 if bench.device == "cpu" else NUM_WINDOWS)
    speeds: list[list[float]] = []

    def opened(name: str) -> DeviceExecutor:
        source = gate.across(model, torch.device(bench.device)) if name == gate.ACROSS else model
        executor = gate.device_way(source, "bfloat16" if name == gate.ACROSS else name, num_blocks=1024, max_rows=32)
        speeds.append([1e3 * median(step_times_s(executor, num_rows)) for num_rows in BATCHES])
        return executor

    names = ("bfloat16", *gate.FEWER_BITS, gate.ACROSS)
    bench.table(
        "weights", "MB a step", *(f"ms a step of {one}" for one in BATCHES), "perplexity", "over bfloat16", "KL mean",
        "KL p99", "words lost : won", "p", "gate",
    )  # fmt: skip
    for name, num_bytes, found, base in gate.judge({one: lambda one=one: opened(one) for one in names}, texts):
        verdict = gate.Verdict.of(found, base)
        bench.found("quality", name, value=verdict.kl_mean)
        bench.row(
            name, num_bytes / 1e6, *speeds[-1], found.perplexity, f"{verdict.loss:+.2%}", f"{verdict.kl_mean:.5f}",
            f"{verdict.kl_p99:.4f}", f"{verdict.lost} : {verdict.won}", f"{verdict.p:.3f}",
            "passes" if verdict.is_passed else "FAILS",
        )  # fmt: skip
    if not bench.has_time(15):
        return
    bench.say()
    bench.say("KL in 1/1000 nats if one layer alone, or the head alone, is kept so:")
    bench.table("layer", *gate.FEWER_BITS)
    for part, nats in gate.layer_divergences(
        model, gate.FEWER_BITS, texts.windows[0][:128], torch.device(bench.device)
    ):
        bench.row(part, *(f"{1e3 * one:.3f}" for one in nats))


def step_times_s(executor: DeviceExecutor, num_rows: int) -> Iterator[float]:
    """Of greedy steps, each sent when the one before is known."""
    tables = [list(range(8 * row, 8 * row + 8)) for row in range(num_rows)]
    ids = [300 + row for row in range(num_rows)]
    for number in range(NUM_STEPS):
        lengths = [number] * num_rows
        columns = DecodeRows(
            tables, lengths, lengths, [Sampling()] * num_rows, [()] * num_rows, ids, number, [0] * num_rows
        )
        began_s = time.perf_counter()
        ids = list(executor.submit(Batch(decodes=columns)).result().decodes.token_ids)
        if number >= NUM_STEPS // 4:
            yield time.perf_counter() - began_s


QUALITY = Section("quality", "Real weights in fewer bits: how good, beside how fast", 80, quality)
