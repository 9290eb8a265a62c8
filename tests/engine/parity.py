"""Architectures × modes against transformers: the largest error of any log-probability. `make parity` prints the table.

Models have random weights in float32, three layers, and windows much shorter than the sequences; the last row is the
real default model, on text. The tests call the same functions.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from engine_rig import (
    ANSWER,
    PROMPT,
    Rig,
    dense_rows,
    log_softmax,
    some_tokens,
    transformers_default_model,
    transformers_logprobs,
    transformers_model,
)
from rich.console import Console
from rich.table import Table
from transformers.utils import logging as transformers_logging

from device_rig import device_rig
from loopwright.engine.byte_model import byte_model
from loopwright.engine.loaded_model import Experts, RopeScaling
from loopwright.engine.loader import load_model
from loopwright.engine.model_files import write_gguf, write_hf_folder
from loopwright.engine.oracle import Oracle
from loopwright.weights.store import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transformers import PreTrainedModel

    from loopwright.engine.loaded_model import LoadedModel

MAX_ERROR = 1e-4

_YARN = RopeScaling("yarn", 4.0, original_max_position=32, attention_factor=1.1386294361119891)
_LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
_GEMMA3 = {
    "architecture": "gemma3", "is_head_tied": True, "windows": (24, 24, None), "local_rope_theta": 10000.0,
    "rope_theta": 1e6, "score_scale": 24**-0.5, "norm_epsilon": 1e-6,
}  # fmt: skip
_EXPERTS = Experts(num_experts=8, num_chosen=3, intermediate_size=32, is_normalized=True)

ARCHITECTURES: Mapping[str, dict[str, object]] = {
    "Llama 2": {"num_kv_heads": 4},
    "Llama 3": {"rope_theta": 500000.0, "num_kv_heads": 1},
    "Llama 3.1: llama3 scaling": {"rope_theta": 500000.0, "rope_scaling": _LLAMA3},
    "Llama: linear scaling": {"rope_scaling": RopeScaling("linear", 4.0)},
    "Llama: yarn scaling": {"rope_scaling": _YARN},
    "Llama: biases": {"has_qkv_bias": True, "has_output_bias": True},
    "SmolLM2: tied, 3 heads of 1": {"is_head_tied": True, "num_heads": 3, "num_kv_heads": 1, "hidden_size": 48},
    "Mistral": {"architecture": "mistral", "head_dim": 8},
    "Mistral: window": {"architecture": "mistral", "windows": (24,) * 3},
    "Qwen2": {"architecture": "qwen2", "has_qkv_bias": True, "is_head_tied": True},
    "Qwen2.5: yarn": {"architecture": "qwen2", "has_qkv_bias": True, "rope_scaling": _YARN},
    "Qwen2: window in late layers": {"architecture": "qwen2", "has_qkv_bias": True, "windows": (None, 24, 24)},
    "Qwen3": {"architecture": "qwen3", "head_dim": 32, "rope_theta": 1e6},
    "Qwen3: yarn": {"architecture": "qwen3", "rope_scaling": _YARN},
    "Qwen3-MoE": {"architecture": "qwen3moe", "experts": _EXPERTS},
    "Qwen3-MoE: shares as they are": {
        "architecture": "qwen3moe",
        "experts": Experts(num_experts=6, num_chosen=2, intermediate_size=48, is_normalized=False),
    },
    "Gemma 3": _GEMMA3,
    "Gemma 3: linear scaling, plain scores": {
        **_GEMMA3, "rope_scaling": RopeScaling("linear", 8.0), "score_scale": 16**-0.5,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model, the same model in transformers, and tokens to run: (number, seed) → ids."""

    model: LoadedModel
    reference: PreTrainedModel
    tokens: Callable[[int, int], list[int]] = some_tokens

    def expected(self, token_ids: list[int]) -> np.ndarray:
        return transformers_logprobs(self.reference, token_ids)


def random_subject(name: str) -> Subject:
    """transformers reads the weights from a folder that we write."""
    model = byte_model(seed=2, **{"num_layers": 3, "norm_epsilon": 1e-5, **ARCHITECTURES[name]})
    with tempfile.TemporaryDirectory() as folder:
        return Subject(model, transformers_model(model, Path(folder)))


def real_subject(path: Path) -> Subject:
    """SmolLM2 over a chat that starts anywhere."""
    chat = [*PROMPT, *ANSWER]
    return Subject(
        load_model(path),
        transformers_default_model(path),
        lambda num_tokens, seed: [chat[(seed + i) % len(chat)] for i in range(num_tokens)],
    )


def prefill(subject: Subject) -> float:
    tokens = subject.tokens(75, 0)
    return _error(Rig(subject.model).logprobs(tokens), subject.expected(tokens))


def decode(subject: Subject) -> float:
    """A prompt of one token, then one token at a time."""
    return _in_pieces(subject, [1] * 50)


def device(subject: Subject) -> float:
    """As chunked, by the engine of a GPU, computed on the CPU with torch's operations."""
    return _in_pieces(subject, [33, 1, 1, 5, 16, 1, 3, 20], device_rig)


def chunked(subject: Subject) -> float:
    return _in_pieces(subject, [33, 1, 1, 5, 16, 1, 3, 20])


def batch(subject: Subject) -> float:
    """Prompts, chunks and single tokens after prefixes of any length, in one step."""
    lengths = [(0, 40), (17, 1), (90, 1), (31, 1), (16, 7), (0, 1), (15, 1), (20, 7), (33, 1), (50, 40)]
    rig = Rig(subject.model)
    sequences = [subject.tokens(kv_len + size, seed) for seed, (kv_len, size) in enumerate(lengths)]
    tables = [rig.blocks(len(sequence)) for sequence in sequences]
    for (kv_len, _), sequence, table in zip(lengths, sequences, tables, strict=True):
        if kv_len:
            rig.rows(rig.row(sequence[:kv_len], block_ids=table))
    rows = [
        rig.row(sequence[kv_len:], kv_len=kv_len, block_ids=table)
        for (kv_len, _), sequence, table in zip(lengths, sequences, tables, strict=True)
    ]
    return max(
        _error(dense_rows(result), subject.expected(sequence)[kv_len:])
        for (kv_len, _), sequence, result in zip(lengths, sequences, rig.rows(*rows), strict=True)
    )


def oracle(subject: Subject) -> float:
    tokens = subject.tokens(75, 0)
    return _error(log_softmax(Oracle(subject.model).logits(tokens)), subject.expected(tokens))


def hf_folder(subject: Subject) -> float:
    with tempfile.TemporaryDirectory() as folder:
        write_hf_folder(subject.model, Path(folder), num_files=2)
        return prefill(replace(subject, model=load_model(Path(folder))))


def gguf_file(subject: Subject) -> float:
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(subject.model, Path(folder) / "model.gguf")
        return prefill(replace(subject, model=load_model(Path(folder) / "model.gguf")))


MODES: Mapping[str, Callable[[Subject], float]] = {
    "prefill": prefill, "decode": decode, "chunked": chunked, "batch": batch, "device": device, "oracle": oracle,
    "folder": hf_folder, "gguf": gguf_file,
}  # fmt: skip
REAL_MODES = ("prefill", "decode", "chunked", "batch", "device", "oracle")  # the real model comes from a file already


def measure() -> Iterator[tuple[str, dict[str, float]]]:
    """A name and the error of each mode, architecture by architecture."""
    for name in ARCHITECTURES:
        subject = random_subject(name)
        yield name, {mode: run(subject) for mode, run in MODES.items()}
    path = resolve("default").path
    subject = real_subject(path)
    yield f"{path.stem}, real", {mode: MODES[mode](subject) for mode in REAL_MODES}


def main() -> int:
    torch.set_num_threads(1)  # operations this small only wait for each other
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console(width=120)  # an error without its exponent says nothing
    table = Table("architecture", *MODES, title=f"largest error against transformers, at most {MAX_ERROR:g}")
    worst = 0.0
    for name, errors in measure():
        worst = max(worst, *errors.values())
        cells = [f"{errors[mode]:.1e}" if mode in errors else "" for mode in MODES]
        table.add_row(name, *(f"[red]{one}[/]" if one and not float(one) <= MAX_ERROR else one for one in cells))
    console.print(table)
    console.print(f"largest of all: {worst:.2e}")
    return 0 if worst <= MAX_ERROR else 1


def _in_pieces(subject: Subject, sizes: list[int], make_rig: Callable[[LoadedModel], Rig] = Rig) -> float:
    rig, tokens = make_rig(subject.model), subject.tokens(sum(sizes), 0)
    block_ids = rig.blocks(len(tokens))
    parts, start = [], 0
    for size in sizes:
        row = rig.row(tokens[start : start + size], kv_len=start, block_ids=block_ids)
        parts.append(dense_rows(rig.rows(row)[0]))
        start += size
    return _error(np.concatenate(parts), subject.expected(tokens))


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    """NaN is an infinite error."""
    return float(np.nan_to_num(np.abs(actual - expected), nan=np.inf).max())


if __name__ == "__main__":
    sys.exit(main())
