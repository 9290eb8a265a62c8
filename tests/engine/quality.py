"""Perplexity of the real default model on this project's own documents, for each way of keeping weights. `make quality`
prints the table; the test calls the same function."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from loopwright.compose.model_parts import tokenizer_at
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import DistributionRequest
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loader import load_model
from loopwright.weights.store import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loopwright.core.model_info import WeightDtype
    from loopwright.core.results import Distribution
    from loopwright.engine.loaded_model import LoadedModel

DTYPES: tuple[WeightDtype, ...] = ("float32", "bfloat16", "int8", "stored")
MAX_LOSS = 0.01  # how much higher than in bfloat16 the perplexity of int8 and of stored weights may be
WINDOW = 512
TEXTS = ("docs/design.md", "docs/batching.md", "docs/sampling.md")
ROOT = Path(__file__).parent.parent.parent


def windows(path: Path, num_windows: int) -> list[list[int]]:
    text = "\n".join((ROOT / name).read_text() for name in TEXTS)
    tokens = tokenizer_at(path).encode(text)
    return [tokens[start : start + WINDOW] for start in range(0, num_windows * WINDOW, WINDOW)]


def perplexity(model: LoadedModel, dtype: WeightDtype, texts: Sequence[Sequence[int]]) -> float:
    """e to the mean negative log-probability of each token but a window's first, given those before it there."""
    executor = TorchExecutor(model, num_blocks=WINDOW // BLOCK_SIZE, num_slots=0, dtype=dtype)
    try:
        losses = [loss for tokens in texts for loss in _losses(executor, tokens)]
    finally:
        executor.close()
    return math.exp(sum(losses) / len(losses))


def _losses(executor: TorchExecutor, tokens: Sequence[int]) -> Iterator[float]:
    asked = [DistributionRequest(index=i, k=1, must_include=(tokens[i + 1],)) for i in range(len(tokens) - 1)]
    blocks = list(range(-(-len(tokens) // BLOCK_SIZE)))
    row = ForwardRow(blocks, 0, list(range(len(tokens))), tokens, distributions=asked)
    for found, token in zip(executor.submit(Batch(rows=[row])).result().rows[0].distributions, tokens[1:], strict=True):
        yield -_logprob(found, token)


def _logprob(found: Distribution, token: int) -> float:
    ids = torch.frombuffer(bytearray(found.ids), dtype=torch.int32).tolist()
    return float(torch.frombuffer(bytearray(found.logprobs), dtype=torch.float32)[ids.index(token)])


def main() -> int:
    path = resolve("default").path
    model, texts = load_model(path), windows(path, 8)
    table = Table(
        "weights", "perplexity", "over bfloat16", title=f"{path.stem}, {len(texts)} windows of {WINDOW} tokens"
    )
    found = {dtype: perplexity(model, dtype, texts) for dtype in DTYPES}
    for dtype, value in found.items():
        table.add_row(dtype, f"{value:.3f}", f"{value / found['bfloat16'] - 1:+.2%}")
    Console().print(table)
    return 0 if max(found["int8"], found["stored"]) <= (1 + MAX_LOSS) * found["bfloat16"] else 1


if __name__ == "__main__":
    sys.exit(main())
