"""Section: what each product of a layer takes by itself, as the engine does it and as torch does, beside a copy.

Each is called again and again on copies of its matrix that no cache holds; on a GPU as a graph, by the device's clock.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from figures.collectives import graph_s, loop_s
from figures.report import Bench, Section
from loopwright.engine.cuda.dummy import shape_config
from loopwright.engine.cuda.matrices import Matrix
from loopwright.engine.cuda.operations import Operations, TorchOperations
from loopwright.engine.loaded_model import ModelConfig

ROWS = (1, 32, 256)
CACHE_BYTES = 200_000_000  # more than any second-level cache holds

Product = Callable[[Tensor, Matrix], object]


async def products(bench: Bench) -> None:
    device = torch.device(bench.device)
    took_s = graph_s if device.type == "cuda" else loop_s
    config, dtype = shape_config(bench.shape), torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.inference_mode():
        source = torch.zeros(CACHE_BYTES * 2, dtype=torch.uint8, device=device)
        copied_per_s = 2 * source.nbytes / took_s(partial(torch.empty_like(source).copy_, source))
        bench.say(
            f"A copy reads and writes {copied_per_s / 1e12:.2f} TB/s. The engine's gate is in its product's time."
        )
        bench.table("product", "rows", "engine µs", "of weights, TB/s", "by a copy's", "TFLOP/s", "torch's product µs")
        for name, (num_outputs, size) in sizes_of(config).items():
            num = -(-CACHE_BYTES // (num_outputs * size * dtype.itemsize)) if device.type == "cuda" else 1
            matrices = [_matrix(num_outputs, size, device, dtype) for _ in range(num)]
            for rows in ROWS if device.type == "cuda" else ROWS[:2]:
                if not bench.has_time(1):
                    return
                vectors = torch.randn(rows, size, device=device).to(dtype)
                residual = torch.zeros(rows, num_outputs, device=device)
                ways: Sequence[Product] = (_way(name, _operations(device), residual), _torchs)
                own_s, torchs_s = (took_s(partial(_each, one, vectors, matrices)) / num for one in ways)
                per_s = matrices[0].nbytes / own_s
                flops = 2 * rows * num_outputs * size / own_s / 1e12
                bench.row(name, rows, 1e6 * own_s, per_s / 1e12, per_s / copied_per_s, flops, 1e6 * torchs_s)


def sizes_of(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a layer's matrices."""
    heads, head_dim = config.num_heads, config.head_dim
    return {
        "qkv": ((heads + 2 * config.num_kv_heads) * head_dim, config.hidden_size),
        "output": (config.hidden_size, heads * head_dim),
        "gate and up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }


def _matrix(num_outputs: int, size: int, device: torch.device, dtype: torch.dtype) -> Matrix:
    return Matrix.of(torch.randn(num_outputs, size, device=device).mul_(size**-0.5), "plain", device, dtype)


def _operations(device: torch.device) -> Operations:
    if device.type != "cuda":
        return TorchOperations()
    from loopwright.engine.cuda.kernels import TritonOperations  # noqa: PLC0415 (there may be no Triton)

    return TritonOperations()


def _way(name: str, operations: Operations, residual: Tensor) -> Product:
    """As the decoder calls it."""
    if name == "qkv":
        return lambda vectors, matrix: operations.project(vectors, matrix, None)
    if name == "gate and up":
        return lambda vectors, matrix: operations.gate(vectors, matrix, "silu")
    return lambda vectors, matrix: operations.project_onto(residual, vectors, matrix, None)


def _torchs(vectors: Tensor, matrix: Matrix) -> object:
    return linear(vectors, matrix.values)


def _each(way: Product, vectors: Tensor, matrices: Sequence[Matrix]) -> None:
    for one in matrices:
        way(vectors, one)


PRODUCTS = Section("products", "Products of a layer", 20, products)
