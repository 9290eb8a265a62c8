"""Measures pie-server 0.5.2: a no-op Python program, launch → return. Never compares. Run in a process of its own, by
`peers.measure`.

The server wants a GPU engine and a model even for a program that uses neither. Its `wgpu` engine runs on any Vulkan
device, a software one too (on Debian: apt-get install mesa-vulkan-drivers); the model is a stand-in of zeros, made here
in the shapes of the smallest text model that it can serve.
"""

import asyncio
import json
import math
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pie.config import Config, EngineConfig, ModelConfig, ServerConfig
from pie.server import Server
from pie_client import PieClient
from pie_client.inferlet import inferlet

MODEL_SKU = "qwen35-tiny-u4g64-kv-bf16"
ENGINE_OPTIONS = {
    "max_total_pages": 512,
    "max_forward_tokens": 1024,
    "max_forward_requests": 8,
    "max_state_slots": 16,
    "device_memory": "8GiB",  # the engine keeps 2 GiB free, all that a software device reports
}


async def noop() -> str:
    return "done"


NOOP = inferlet(noop)


async def main(workload: dict[str, int]) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        engine = EngineConfig(type="wgpu", device=["wgpu:0"], options=ENGINE_OPTIONS)
        model = ModelConfig(hf_repo=folder, sku=MODEL_SKU, engine=engine)
        async with Server(Config(server=ServerConfig(port=0), model=model)) as server:
            return await measure(await server.connect(), workload)


async def measure(client: PieClient, workload: dict[str, int]) -> list[dict[str, object]]:
    """The same cases, rounds and statistics as `bench.launch`."""
    await (await client.run(NOOP)).result()  # installs the program, compiles the runtime: 20 s the first time
    for _ in range(workload["num_warm_up"]):
        await launch_s(client)
    p50s_ms, p99s_ms, rates = [], [], []
    for _ in range(workload["num_rounds"]):
        latencies_s = sorted([await launch_s(client) for _ in range(workload["num_sequential"])])
        p50s_ms.append(1e3 * percentile(latencies_s, 0.50))
        p99s_ms.append(1e3 * percentile(latencies_s, 0.99))
        started_s = time.monotonic()
        await asyncio.gather(*(launch_s(client) for _ in range(workload["num_burst"])))
        rates.append(workload["num_burst"] / (time.monotonic() - started_s))
    return [
        {"case": "case=sequential", "metric": "p50_ms", "value": median(p50s_ms)},
        {"case": "case=sequential", "metric": "p99_ms", "value": median(p99s_ms)},
        {"case": f"case=burst/n={workload['num_burst']}", "metric": "launches_per_s", "value": median(rates)},
    ]


async def launch_s(client: PieClient) -> float:
    """Seconds from one launch, by name, to its result."""
    started_s = time.monotonic()
    process = await client.launch_process(NOOP.program)
    result = await process.result()
    assert result == "done", f"the no-op program returned {result!r}"
    return time.monotonic() - started_s


def percentile(ordered: list[float], fraction: float) -> float:
    """As in `bench.launch`; this process imports nothing of ours."""
    return ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)]


def write_model(folder: Path) -> None:
    """A checkpoint of zeros (a sparse file), with a byte-level tokenizer."""
    sizes = {"U32": 4, "F32": 4, "BF16": 2}
    header: dict[str, object] = {}
    end = 0
    for name, shape, dtype in tensors():
        start, end = end, end + math.prod(shape) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(8 + len(encoded) + end)
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "quantization": {"group_size": 64, "bits": 4},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))


def tensors() -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of every tensor: three layers of linear attention and one of full attention, hidden size
    256. Matrices are in the stored form of 4-bit groups of 64."""
    model, hidden = "model.language_model", 256
    yield from matrix(f"{model}.embed_tokens", 248_320, hidden)
    yield f"{model}.norm.weight", (hidden,), "BF16"
    for index in range(4):
        layer = f"{model}.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,), "BF16"
        yield f"{layer}.post_attention_layernorm.weight", (hidden,), "BF16"
        yield from full_attention(f"{layer}.self_attn") if index == 3 else linear_attention(f"{layer}.linear_attn")
        yield from matrix(f"{layer}.mlp.gate_proj", 512, hidden)
        yield from matrix(f"{layer}.mlp.up_proj", 512, hidden)
        yield from matrix(f"{layer}.mlp.down_proj", hidden, 512)


def full_attention(name: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for part, num_out in (("q_proj", 512), ("k_proj", 128), ("v_proj", 128), ("o_proj", 256)):
        yield from matrix(f"{name}.{part}", num_out, 256)
    yield f"{name}.q_norm.weight", (64,), "BF16"
    yield f"{name}.k_norm.weight", (64,), "BF16"


def linear_attention(name: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for part, num_out in (("in_proj_qkv", 2048), ("in_proj_z", 1024), ("in_proj_b", 8), ("in_proj_a", 8)):
        yield from matrix(f"{name}.{part}", num_out, 256)
    yield from matrix(f"{name}.out_proj", 256, 1024)
    yield f"{name}.conv1d.weight", (2048, 1, 4), "BF16"
    yield f"{name}.dt_bias", (8,), "BF16"
    yield f"{name}.A_log", (8,), "F32"
    yield f"{name}.norm.weight", (128,), "BF16"


def matrix(name: str, num_out: int, num_in: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield f"{name}.weight", (num_out, num_in // 8), "U32"
    yield f"{name}.scales", (num_out, num_in // 64), "BF16"
    yield f"{name}.biases", (num_out, num_in // 64), "BF16"


def tokenizer() -> dict[str, Any]:
    """A tokenizer of single bytes and the control tokens that the server looks for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + rank) for rank, byte in enumerate(others)}
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    vocab = {letters[byte]: byte for byte in range(256)} | {name: 256 + rank for rank, name in enumerate(controls)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    split = {"type": "Split", "pattern": {"Regex": r"\s+|\S+"}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocab[name], "content": name} | flags for name in controls],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "decoder": bytes_only,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
