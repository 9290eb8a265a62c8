"""Measures llama.cpp through llama-cpp-python: the GGUF file, prompts and number of tokens of `bench.decode`, greedy.
Never compares. Run in a process of its own, by `peers.measure`.

It uses the batch interface with a KV cache for each sequence: every prompt is run as one batch, then all sequences take
their steps together, as in its own server.
"""

import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import llama_cpp as llama
import numpy as np

FILE_TYPES = {"stored": None, "float32": 0, "int8": 7, "bfloat16": 32}  # llama_ftype: ALL_F32, MOSTLY_Q8_0, MOSTLY_BF16
Pointer: TypeAlias = Any
"""To a structure of llama.cpp; ctypes knows its type, Python does not."""


def main(workload: dict[str, Any]) -> list[dict[str, object]]:
    path = str(workload["model_path"])
    if not path.endswith(".gguf"):
        sys.exit(f"llama.cpp reads GGUF files, not {path}")
    silence = llama.llama_log_callback(lambda level, text, user_data: None)  # it writes pages of loading otherwise
    llama.llama_log_set(silence, ctypes.c_void_p(0))
    llama.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        kept = same_weights(path, str(workload["dtype"]), Path(folder))
        model = llama.llama_model_load_from_file(kept.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot load {kept}")
    values: list[dict[str, object]] = []
    for batch_size in workload["batch_sizes"]:
        speeds, ttfts_ms = measure_batch(model, workload, workload["prompts"][:batch_size])
        case = f"batch={batch_size}"
        values.append({"case": case, "metric": "tokens_per_s", "value": median(speeds)})
        values.append({"case": case, "metric": "ttft_ms", "value": median(ttfts_ms)})
    for prompt in workload["long_prompts"]:
        _, ttfts_ms = measure_batch(model, {**workload, "num_tokens_out": 1}, [prompt])
        speed = 1e3 * len(prompt) / median(ttfts_ms)
        values.append({"case": f"prompt={len(prompt)}", "metric": "tokens_per_s", "value": speed})
    return values


def same_weights(path: str, dtype: str, folder: Path) -> str:
    """A file with the model's weights as our engine keeps them; the file itself, where that is how it has them."""
    file_type = FILE_TYPES[dtype]
    if file_type is None:
        return path
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = file_type, True
    target = str(folder / "model.gguf")
    if llama.llama_model_quantize(path.encode(), target.encode(), ctypes.byref(parameters)) != 0:
        sys.exit(f"llama.cpp cannot make {dtype} of {path}")
    return target


def measure_batch(
    model: Pointer, workload: dict[str, Any], prompts: Sequence[Sequence[int]]
) -> tuple[list[float], list[float]]:
    """Tokens a second and milliseconds to the first token (median over the sequences), one of each for every round."""
    num_out = int(workload["num_tokens_out"])
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = sum(len(prompt) + max(num_out, 8) for prompt in prompts)
    parameters.n_batch = max(512, *map(len, prompts))
    parameters.n_ubatch = 512
    parameters.n_seq_max = len(prompts)
    parameters.n_threads = parameters.n_threads_batch = int(workload["num_threads"])
    context = llama.llama_init_from_model(model, parameters)
    if not context:
        sys.exit(f"llama.cpp cannot make a context for {len(prompts)} sequences")
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    speeds, ttfts_ms = [], []
    try:
        generate(context, prompts[:1], 8, vocab_size)  # warm-up
        for _ in range(int(workload["num_rounds"])):
            started_s = time.monotonic()
            first_tokens_s = generate(context, prompts, num_out, vocab_size)
            elapsed_s = time.monotonic() - started_s
            speeds.append(len(prompts) * num_out / elapsed_s)
            ttfts_ms.append(1e3 * (median(first_tokens_s) - started_s))
    finally:
        llama.llama_free(context)
    return speeds, ttfts_ms


def generate(context: Pointer, prompts: Sequence[Sequence[int]], num_out: int, vocab_size: int) -> list[float]:
    """Runs all prompts and `num_out` greedy tokens of each; returns when each sequence had its first token."""
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    batch = llama.llama_batch_init(max(512, len(prompts), *map(len, prompts)), 0, 1)
    tokens: list[int] = []
    first_tokens_s: list[float] = []
    try:
        for sequence, prompt in enumerate(prompts):
            rows = [(token, position, sequence) for position, token in enumerate(prompt)]
            tokens += decode(context, batch, rows, [len(prompt) - 1], vocab_size)
            first_tokens_s.append(time.monotonic())
        for step in range(num_out - 1):
            rows = [(token, len(prompts[sequence]) + step, sequence) for sequence, token in enumerate(tokens)]
            tokens = decode(context, batch, rows, range(len(rows)), vocab_size)
    finally:
        llama.llama_batch_free(batch)
    return first_tokens_s


def decode(
    context: Pointer, batch: Pointer, rows: Sequence[tuple[int, int, int]], wanted: Sequence[int], vocab_size: int
) -> list[int]:
    """One step over (token, position, sequence) rows; the greedy token after each row of `wanted`."""
    batch.n_tokens = len(rows)
    for index, (token, position, sequence) in enumerate(rows):
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = sequence
        batch.logits[index] = index in wanted
    status = llama.llama_decode(context, batch)
    if status != 0:
        sys.exit(f"llama_decode answered {status}")
    chosen = []
    for index in wanted:
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, index), shape=(vocab_size,))
        chosen.append(int(logits.argmax()))
    return chosen


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
