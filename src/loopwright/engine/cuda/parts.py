"""Puts a model on a device: cache, operations, attention, decoder, and how many blocks of KV there is room for.

Called by the executor. What cannot be had is refused with the numbers.
"""

from dataclasses import dataclass

import torch

from loopwright.core.errors import Unavailable
from loopwright.engine.cuda.attention import PagedAttention, SdpaAttention
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.decoder import DeviceDecoder
from loopwright.engine.cuda.matrices import KindOf, kinds
from loopwright.engine.cuda.operations import Operations, TorchOperations
from loopwright.engine.loaded_model import LoadedModel, ModelConfig


@dataclass(frozen=True, slots=True, eq=False)
class DeviceParts:
    """What a runner on a device is made of."""

    cache: DeviceKvCache
    operations: Operations
    attention: PagedAttention
    decoder: DeviceDecoder

    @classmethod
    def make(
        cls, model: LoadedModel, *, num_blocks: int, device: torch.device, dtype: torch.dtype, attention: str = "sdpa",
        has_kernels: bool = False, kind_of: KindOf | None = None,
    ) -> "DeviceParts":  # fmt: skip
        """`attention` is "sdpa" or "flashinfer"; `has_kernels` takes Triton's operations instead of torch's. `kind_of`
        says how each matrix is kept, None as `dtype` is."""
        cache = DeviceKvCache(model.config, num_blocks, device, dtype)
        operations = _triton_operations() if has_kernels else TorchOperations()
        backend = _attention(attention, cache, model.config)
        decoder = DeviceDecoder(model, cache, backend, operations, dtype, kind_of or kinds("auto"))
        return cls(cache, operations, backend, decoder)


def _triton_operations() -> Operations:
    from loopwright.engine.cuda.kernels import TritonOperations  # noqa: PLC0415 (there may be no Triton)

    return TritonOperations()


def _attention(name: str, cache: DeviceKvCache, config: ModelConfig) -> PagedAttention:
    if name == "sdpa":
        return SdpaAttention(cache)
    if name != "flashinfer":
        raise Unavailable(f"the attention back-end {name!r} does not exist; known are sdpa and flashinfer")
    from loopwright.engine.cuda.flash_infer import FlashInferAttention  # noqa: PLC0415 (there may be no FlashInfer)

    return FlashInferAttention(cache, config)
