"""The quality gate: each way of keeping weights beside bfloat16, of the real default model on this project's documents.
`make quality` prints the tables; the test calls the same functions.

A way passes if the perplexity rises by at most a hundredth, the distributions are at most 0.01 nats away in the mean,
and the words that the model would have written are not fewer by more than chance (McNemar's exact test, at 0.05). A
file of 4 bits has the very groups that int4 has, so int4 is also judged with groups that lie across the file's, which
is what a model of 16 bits would lose; that judgement counts. On a machine with a GPU its ways run there.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from loopwright.compose.model_parts import tokenizer_at
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import DistributionRequest
from loopwright.engine.cuda.choice import DeviceChoice, choose_device
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.cuda.judged import JUDGEMENTS
from loopwright.engine.cuda.matrices import FEWER_BITS, SMALL_GROUP, Matrix, kinds
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.executor import TorchExecutor
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loader import load_model
from loopwright.weights.store import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loopwright.core.model_info import WeightDtype
    from loopwright.engine.cuda.matrices import MatrixKind
    from loopwright.engine.loaded_model import LoadedModel

    Run = Callable[[Batch], Sequence[np.ndarray]]

MAX_LOSS = 0.01  # how much higher than in bfloat16 the perplexity may be
MAX_KL = 0.01  # nats, mean over tokens
MIN_P = 0.05  # below, words were lost by more than chance
WINDOW = 512
TEXTS = ("docs/design.md", "docs/batching.md", "docs/sampling.md")
ROOT = Path(__file__).parent.parent.parent
CPU = torch.device("cpu")
_HEADS = ("weights", "MB a step", "perplexity", "over bfloat16", "KL mean", "KL p99", "words lost : won", "p", "gate")
ACROSS = "int4, groups across the file's"


@dataclass(frozen=True)
class Texts:
    """Windows of tokens, and of each the words: where they start and end, those alone that are whole and not first."""

    windows: list[list[int]]
    words: list[list[tuple[int, int]]]

    @classmethod
    def of(cls, path: Path, num_windows: int, size: int = WINDOW) -> Texts:
        tokenizer = tokenizer_at(path)
        tokens = tokenizer.encode("\n".join((ROOT / name).read_text() for name in TEXTS))
        windows = [tokens[start : start + size] for start in range(0, num_windows * size, size)]
        begins = [[place for place, token in enumerate(window) if tokenizer.decode([token])[:1] in (" ", "\n")]
                  for window in windows]  # fmt: skip
        return cls(windows, [list(pairwise(one)) for one in begins])


@dataclass(frozen=True)
class Found:
    """What one way says: log-probabilities of the texts' own tokens, which words it would have written, and how far its
    distributions are from the baseline's, in nats (of the baseline, zeros)."""

    logprobs: np.ndarray
    hits: np.ndarray
    divergences: np.ndarray

    @property
    def perplexity(self) -> float:
        return math.exp(-float(self.logprobs.mean()))


@dataclass(frozen=True)
class Verdict:
    """A way beside the baseline. `lost` words the baseline alone would have written, `won` the way alone."""

    loss: float
    kl_mean: float
    kl_p99: float
    lost: int
    won: int

    @classmethod
    def of(cls, found: Found, base: Found) -> Verdict:
        return cls(
            found.perplexity / base.perplexity - 1,
            float(found.divergences.mean()),
            float(np.quantile(found.divergences, 0.99)),
            int((base.hits & ~found.hits).sum()),
            int((~base.hits & found.hits).sum()),
        )

    @property
    def p(self) -> float:
        return mcnemar(self.lost, self.won)

    @property
    def is_passed(self) -> bool:
        is_worse = self.lost > self.won and self.p < MIN_P
        return self.loss <= MAX_LOSS and self.kl_mean <= MAX_KL and not is_worse


def mcnemar(lost: int, won: int) -> float:
    """The exact test, two-sided: how likely so uneven a split of lost + won tosses of a coin is."""
    num = lost + won
    tail = sum(math.comb(num, k) for k in range(min(lost, won) + 1)) / 2**num
    return min(1.0, 2 * tail)


def cpu_way(model: LoadedModel, dtype: WeightDtype) -> TorchExecutor:
    return TorchExecutor(model, num_blocks=WINDOW // BLOCK_SIZE, num_slots=0, dtype=dtype)


def device_way(
    model: LoadedModel, dtype: WeightDtype, *, num_blocks: int = WINDOW // BLOCK_SIZE, max_rows: int = 1
) -> DeviceExecutor:
    """On the GPU, if there is one, else with torch's operations in bfloat16."""
    choice = choose_device("auto", model.config, dtype)
    if choice is None:
        fewer = dtype if dtype in FEWER_BITS else None
        choice = DeviceChoice(CPU, torch.bfloat16, "sdpa", False, "the CPU, as a device", fewer)
    return DeviceExecutor(
        model, choice, num_blocks=num_blocks, num_slots=0, max_rows=max_rows, max_tokens=WINDOW,
        report=lambda stage, fraction: None,
    )  # fmt: skip


def across(model: LoadedModel, device: torch.device = CPU) -> LoadedModel:
    """The model with the numbers that int4 keeps of it, if its groups begin in the middle of a file's."""
    half, kind_of = SMALL_GROUP // 2, kinds("int4")

    def kept(name: str, weight: torch.Tensor) -> torch.Tensor:
        if weight.dim() == 1 or name == "embedding":
            return weight
        matrix = Matrix.of(weight.to(device).roll(half, 1), kind_of(name), device, torch.bfloat16)
        return matrix.weights().roll(-half, 1).contiguous()

    return dataclasses.replace(model, weights={name: kept(name, one) for name, one in model.weights.items()})


def logprobs_of(run: Run, window: Sequence[int]) -> torch.Tensor:
    """After each token but the last: float32 [num_tokens - 1, vocab_size]."""
    asked = [DistributionRequest(index=i, k=1, logits=True) for i in range(len(window) - 1)]
    blocks = list(range(-(-len(window) // BLOCK_SIZE)))
    row = ForwardRow(blocks, 0, list(range(len(window))), window, distributions=asked)
    return torch.from_numpy(np.stack(run(Batch(rows=[row])))).log_softmax(-1)


def run_on(executor: TorchExecutor | DeviceExecutor) -> Run:
    def run(batch: Batch) -> list[np.ndarray]:
        return [
            np.frombuffer(one.logits or b"", "<f4") for one in executor.submit(batch).result().rows[0].distributions
        ]

    return run


def measure(run: Run, texts: Texts, base: Sequence[torch.Tensor] | None = None) -> tuple[Found, list[torch.Tensor]]:
    """What it says of the texts, beside the log-probabilities `base`; and its own."""
    logprobs, hits, divergences, kept = [], [], [], []
    for number, (window, words) in enumerate(zip(texts.windows, texts.words, strict=True)):
        own = logprobs_of(run, window)
        ids = torch.tensor(window[1:])
        logprobs.append(own.gather(1, ids[:, None])[:, 0].numpy())
        is_best = [False, *(own.argmax(-1) == ids).tolist()]
        hits += [all(is_best[start:end]) for start, end in words if start]
        if base is None:
            kept.append(own)
        else:
            divergences.append((base[number].exp() * (base[number] - own)).sum(-1).clamp(min=0).numpy())
    flat = np.concatenate(divergences) if divergences else np.zeros(1)
    return Found(np.concatenate(logprobs), np.array(hits), flat), kept


def judge(
    ways: Mapping[str, Callable[[], TorchExecutor | DeviceExecutor]], texts: Texts
) -> Iterator[tuple[str, int, Found, Found]]:
    """By name: bytes of weights a step, and what it says beside what the first one says."""
    base: Found | None = None
    kept: list[torch.Tensor] = []
    for name, make in ways.items():
        with closing(make()) as executor:
            found, own = measure(run_on(executor), texts, kept or None)
            num_bytes = executor.step_weight_bytes
        if base is None:
            base, kept = found, own
        yield name, num_bytes, found, base


def layer_divergences(
    model: LoadedModel, kinds: Sequence[MatrixKind], window: Sequence[int], device: torch.device = CPU
) -> Iterator[tuple[str, list[float]]]:
    """How far the distributions move if the matrices of one layer alone, or the head alone, are kept in each of the
    ways: the part's name, and nats in the mean. All else is in bfloat16, and put on the device once."""
    placed = {name: one.to(device, torch.bfloat16) for name, one in model.weights.items()}
    texts = Texts([list(window)], [[]])

    def run_with(part: str, kind: MatrixKind, batch: Batch) -> list[np.ndarray]:
        own = {name: one for name, one in model.weights.items() if part and name.startswith(part)}
        mixed = dataclasses.replace(model, weights={**placed, **own})
        parts = DeviceParts.make(
            mixed, num_blocks=WINDOW // BLOCK_SIZE, device=device, dtype=torch.bfloat16,
            has_kernels=device.type == "cuda",
            kind_of=lambda name: kind if part and name.startswith(part) else "plain",
        )  # fmt: skip
        runner = DeviceRunner(mixed, parts, num_slots=0, max_rows=1)
        return [np.frombuffer(one.logits or b"", "<f4") for one in runner.run(batch).rows[0].distributions]

    with torch.inference_mode():
        _, base = measure(partial(run_with, "", "plain"), texts)
        for part in (*(f"layers.{layer}." for layer in range(model.config.num_layers)), "head"):
            found = [measure(partial(run_with, part, kind), texts, base)[0] for kind in kinds]
            yield part.removeprefix("layers.").rstrip("."), [float(one.divergences.mean()) for one in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--no-layers", action="store_true", help="leave the divergences layer by layer out")
    arguments = parser.parse_args()
    path, console = resolve("default").path, Console(width=150)
    model, texts = load_model(path), Texts.of(path, arguments.windows)
    on_cpu = {dtype: partial(cpu_way, model, dtype) for dtype in ("bfloat16", "float32", "int8", "stored")}
    on_device: dict[str, Callable[[], DeviceExecutor]] = {
        dtype: partial(device_way, model, dtype) for dtype in ("bfloat16", *FEWER_BITS)
    }
    on_device[ACROSS] = lambda: device_way(across(model), "bfloat16")
    wrong = []
    for title, ways in (("the CPU's kernels", on_cpu), ("a GPU's ways", on_device)):
        table = Table(*_HEADS, title=f"{path.stem}, {title}, {len(texts.windows)} windows of {WINDOW} tokens")
        judged = judge(ways, texts)
        for name, num_bytes, found, base in track(
            judged, title, len(ways), console=Console(stderr=True), transient=True
        ):
            verdict = Verdict.of(found, base)
            table.add_row(
                name, f"{num_bytes / 1e6:.1f}", f"{found.perplexity:.3f}", f"{verdict.loss:+.2%}",
                f"{verdict.kl_mean:.5f}", f"{verdict.kl_p99:.4f}", f"{verdict.lost} : {verdict.won}",
                f"{verdict.p:.3f}", "passes" if verdict.is_passed else "FAILS",
            )  # fmt: skip
            wrong += _contradictions(title, name, verdict)
        console.print(table)
        console.print(f"{len(base.hits)} words, of which bfloat16 would have written {base.hits.mean():.1%}")
    if not arguments.no_layers:
        _print_layers(console, model, texts.windows[0][:128])
    for line in wrong:
        console.print(f"[red]{line}")
    return 1 if wrong else 0


def _contradictions(title: str, name: str, verdict: Verdict) -> list[str]:
    """What the CPU's ways and a server's words about a GPU's say otherwise."""
    dtype = "int4" if name == ACROSS else name
    if title.startswith("the CPU"):
        expected = True
    elif dtype in JUDGEMENTS and name != "int4":
        expected = JUDGEMENTS[dtype].is_passed
    else:
        return []
    if verdict.is_passed == expected:
        return []
    return [f"{name} on {title}: the gate says {verdict.is_passed}, and what stands written is {expected}"]


def _print_layers(console: Console, model: LoadedModel, window: Sequence[int]) -> None:
    title = f"KL in 1/1000 nats of one layer alone, {len(window)} tokens"
    table = Table("layer", *FEWER_BITS, title=title)
    found = layer_divergences(model, ("fp8", "int8", "int4"), window)
    for part, nats in track(found, title, model.config.num_layers + 1, console=Console(stderr=True), transient=True):
        table.add_row(part, *(f"{1e3 * one:.3f}" for one in nats))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
