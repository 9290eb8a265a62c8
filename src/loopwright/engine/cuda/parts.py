"""Puts a model on a device: cache, operations, attention, decoder, and how many blocks of KV there is room for.

Called by the executor. What cannot be had is refused with the numbers.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch

from loopwright.core.errors import Unavailable
from loopwright.engine.cuda.attention import PagedAttention, SdpaAttention
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.decoder import DeviceDecoder
from loopwright.engine.cuda.matrices import KindOf, MatrixKind, kinds
from loopwright.engine.cuda.operations import Operations, TorchOperations
from loopwright.engine.loaded_model import LoadedModel, ModelConfig


@dataclass(frozen=True, slots=True, eq=False)
class DeviceParts:
    """What a runner on a device is made of."""

    cache: DeviceKvCache
    operations: Operations
    attention: PagedAttention
    decoder: DeviceDecoder
    has_passes: bool = False  # prompts may be graphs: the kernel that attends in these is as good as the back-end's

    @classmethod
    def make(
        cls, model: LoadedModel, *, num_blocks: int, device: torch.device, dtype: torch.dtype, attention: str = "sdpa",
        has_kernels: bool = False, kind_of: KindOf | None = None, is_deterministic: bool = False,
    ) -> "DeviceParts":  # fmt: skip
        """`attention` is "sdpa", "flashinfer" or "triton"; `has_kernels` takes Triton's operations instead of torch's.
        `kind_of` says how each matrix is kept, None as `dtype` is. With `is_deterministic` no row's bits depend on the
        others, which needs kernels, bfloat16 and "triton"."""
        kind_of = kind_of or kinds("auto")
        assert not is_deterministic or (has_kernels and attention == "triton" and dtype == torch.bfloat16)
        cache = DeviceKvCache(model.config, num_blocks, device, dtype)
        operations: Operations = TorchOperations()
        if has_kernels:
            operations = _triton_operations(
                {kind_of("head"), kind_of("layers.0.down")} if is_deterministic else None, device
            )
        backend = _attention(attention, cache, model.config, is_deterministic=is_deterministic)
        decoder = DeviceDecoder(model, cache, backend, operations, dtype, kind_of)
        has_passes = has_kernels and attention != "sdpa" and not is_deterministic
        return cls(cache, operations, backend, decoder, has_passes)


def _triton_operations(kinds_in_use: Collection[MatrixKind] | None, device: torch.device) -> Operations:
    from loopwright.engine.cuda import product_kernels  # noqa: PLC0415 (there may be no Triton)
    from loopwright.engine.cuda.kernels import TritonOperations  # noqa: PLC0415

    if kinds_in_use is None:
        return TritonOperations()
    return TritonOperations({kind for kind in kinds_in_use if product_kernels.agree(kind, device)})


def _attention(name: str, cache: DeviceKvCache, config: ModelConfig, *, is_deterministic: bool) -> PagedAttention:
    if name == "sdpa":
        return SdpaAttention(cache)
    if name == "triton":
        from loopwright.engine.cuda.tile_attention import TileAttention  # noqa: PLC0415 (there may be no Triton)

        return TileAttention(cache, config.num_heads, is_deterministic=is_deterministic)
    if name != "flashinfer":
        raise Unavailable(f"the attention back-end {name!r} does not exist; known are sdpa, flashinfer and triton")
    from loopwright.engine.cuda.flash_infer import FlashInferAttention  # noqa: PLC0415 (there may be no FlashInfer)

    return FlashInferAttention(cache, config)
