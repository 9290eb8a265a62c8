"""Section: how far a row's log-probabilities are from float32, and from its own in other batches."""

import numpy as np
import torch

from figures.report import Bench, Section
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.engine.cuda.dummy import dummy_model, shape_config
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner

SIZES = (1, 2, 7, 16, 32, 64, 128, 256)


async def noise(bench: Bench) -> None:
    """One row of 64 tokens among equal prompts."""
    config, device = shape_config(bench.shape), torch.device(bench.device)
    with torch.inference_mode():
        model = dummy_model(config, device, torch.bfloat16)
        reference = _logprobs(model, device, torch.float32, (1,))[1]
        found = _logprobs(model, device, torch.bfloat16, SIZES)
        own = _logprobs(model, device, torch.bfloat16, SIZES, is_deterministic=True) if device.type == "cuda" else {}
    spread, alone, worst = float(reference.std()), found[1], 0.0
    bench.say(
        f"Log-probabilities of one row of 64 tokens, their spread {spread:.2f}; errors are root mean squares over it."
    )
    bench.table("batch", "from float32", "largest", "from batch 1", "largest")
    for size, one in found.items():
        values = [value for other in (reference, alone)
                  for value in (np.sqrt(np.mean((one - other) ** 2)) / spread, np.abs(one - other).max())]  # fmt: skip
        bench.row(size, *(f"{value:.4f}" for value in values))
        worst = max(worst, float(values[0]))
    bench.found("noise", "fast", value=worst)
    if own:
        far = np.sqrt(np.mean((own[1] - reference) ** 2)) / spread
        bench.found("noise", "own", value=float(far))
        unequal = [size for size, one in own.items() if (one != own[1]).any()]
        bench.found("noise", "unequal", value=float(len(unequal)))
        bits = f"OTHER BITS at {unequal}" if unequal else "equal bits at all"
        bench.say(f"Deterministic: {far:.4f} from float32 at batch 1; {bits}.")


def _logprobs(model, device, dtype, sizes, *, is_deterministic=False):
    is_fast = dtype == torch.bfloat16 and device.type == "cuda"
    parts = DeviceParts.make(model, num_blocks=256 * 6, device=device, dtype=dtype, has_kernels=is_fast,
                             attention="triton" if is_deterministic else "sdpa",
                             is_deterministic=is_deterministic)  # fmt: skip
    runner = DeviceRunner(model, parts, num_slots=1, max_rows=256)
    tokens = np.random.default_rng(0).integers(300, model.config.vocab_size, 65).tolist()
    found = {}
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
        found[size] = logits - np.logaddexp.reduce(logits)
    return found


NOISE = Section("noise", "How exact the fast class is", 30, noise)
