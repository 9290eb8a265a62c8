"""Models of known sizes with random weights, made on the device: for measuring speed where there are no files.

Never good at anything. Their tokenizer is made in compose.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from loopwright.core.errors import BadRequest
from loopwright.engine.layers import make_ropes
from loopwright.engine.loaded_model import Experts, LoadedModel, ModelConfig, RopeScaling
from loopwright.engine.models import find_architecture
from loopwright.engine.shards import WHOLE, Shard, local_config, sharded_specs

_LLAMA_1B = ModelConfig(
    architecture="llama", vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_layers=16, num_heads=32,
    num_kv_heads=8, head_dim=64, max_context=131072, norm_epsilon=1e-5, rope_theta=500000.0,
    rope_scaling=RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), is_head_tied=True,
)  # fmt: skip

SHAPES: Mapping[str, ModelConfig] = {
    "llama-1b": _LLAMA_1B,
    "llama-3b": dataclasses.replace(_LLAMA_1B, hidden_size=3072, num_layers=28, num_heads=24, head_dim=128),
    "llama-8b": dataclasses.replace(
        _LLAMA_1B, hidden_size=4096, intermediate_size=14336, num_layers=32, head_dim=128, is_head_tied=False,
        rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
    ),
    "mistral-7b": ModelConfig(
        architecture="mistral", vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, max_context=32768, norm_epsilon=1e-5, rope_theta=10000.0,
        rope_scaling=None, is_head_tied=False, windows=(4096,) * 32,
    ),
    "gemma-3-4b": ModelConfig(
        architecture="gemma3", vocab_size=262208, hidden_size=2560, intermediate_size=10240, num_layers=34,
        num_heads=8, num_kv_heads=4, head_dim=256, max_context=131072, norm_epsilon=1e-6, rope_theta=1e6,
        rope_scaling=RopeScaling("linear", 8.0), is_head_tied=True, local_rope_theta=10000.0, score_scale=1 / 16,
        windows=tuple(None if layer % 6 == 5 else 1024 for layer in range(34)),
    ),
    "qwen3-30b-a3b": ModelConfig(
        architecture="qwen3moe", vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_layers=48,
        num_heads=32, num_kv_heads=4, head_dim=128, max_context=40960, norm_epsilon=1e-6, rope_theta=1e6,
        rope_scaling=None, is_head_tied=False, experts=Experts(128, 8, 768, is_normalized=True),
    ),
    "tiny": dataclasses.replace(
        _LLAMA_1B, vocab_size=512, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16, max_context=4096,
    ),
    "tiny-experts": ModelConfig(
        architecture="qwen3moe", vocab_size=512, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=16, max_context=4096, norm_epsilon=1e-6, rope_theta=1e6, rope_scaling=None,
        is_head_tied=False, experts=Experts(8, 2, 32, is_normalized=True),
    ),
}  # fmt: skip
"""Sizes of Llama 3.2 1B and 3B, of Llama 3.1 8B, of Mistral 7B v0.1, of Gemma 3 4B's text part and of Qwen3 30B-A3B, as
their releases' config.json have them, and two for trying."""


def shape_config(name: str) -> ModelConfig:
    """Raises BadRequest, which names the known ones."""
    if name not in SHAPES:
        raise BadRequest(f"there is no shape {name!r}; known are {', '.join(SHAPES)}", field="engine.shape")
    return SHAPES[name]


def dummy_model(
    config: ModelConfig, device: torch.device | None = None, dtype: torch.dtype | None = None, seed: int = 0,
    shard: Shard = WHOLE, *, is_held: bool = True,
) -> LoadedModel:  # fmt: skip
    """Random weights, the same for the same seed on the same kind of device: on the GPU in bfloat16, or on the CPU in
    float32 where there is none. With `shard`, that part of them: each is drawn whole, and cut. The same matrices of all
    experts of a layer lie one below the other, as a device wants them. Unless they are held, each is drawn whenever it
    is asked for: nothing lies beside what a decoder keeps of them in fewer bits."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)

    def weight(name: str, shape: tuple[int, ...], place: int) -> Tensor:
        if len(shape) == 1:
            return torch.zeros(shape, dtype=dtype, device=device) + (0 if name.endswith("_bias") else 1)
        generator = torch.Generator(device).manual_seed(seed << 16 | place)
        spread = 1 / float(shape[1]) ** 0.5
        return torch.randn(shape, generator=generator, dtype=dtype, device=device).mul_(spread)

    def part(name: str) -> Tensor:
        place, whole, mine = parts[name]
        drawn = weight(name, whole, place)
        if mine.is_elsewhere:
            return drawn.zero_()
        if mine.spec.shape == whole:
            return drawn
        stored = drawn.split([cut.num_rows for cut in mine.cuts])
        cuts = zip(stored, mine.cuts, strict=True)
        return torch.cat([one[cut.rows] if one.ndim == 1 else one[cut.rows, cut.columns] for one, cut in cuts])

    stacks: dict[tuple[str, str], Tensor] = {}

    def laid(name: str, drawn: Tensor) -> Tensor:
        layer, is_expert, rest = name.partition(".experts.")
        if not is_expert or config.experts is None:
            return drawn
        number, _, kind = rest.partition(".")
        if (layer, kind) not in stacks:
            stacks[layer, kind] = drawn.new_empty(config.experts.num_experts, *drawn.shape)
        return stacks[layer, kind][int(number)].copy_(drawn)

    specs = find_architecture(config.architecture).weights(config)
    both = zip(specs, sharded_specs(config, shard), strict=True)
    parts = {one.name: (place, one.shape, mine) for place, (one, mine) in enumerate(both)}
    weights: Mapping[str, Tensor] = _Drawn(part, tuple(parts))
    if is_held or config.experts is not None:
        weights = {name: laid(name, part(name)) for name in parts}
    return LoadedModel(local_config(config, shard.num_ranks), weights, make_ropes(config), "dummy")


class _Drawn(Mapping[str, Tensor]):
    """Weights that are drawn when they are asked for."""

    def __init__(self, draw: Callable[[str], Tensor], names: tuple[str, ...]) -> None:
        self._draw, self._names = draw, names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._draw(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
