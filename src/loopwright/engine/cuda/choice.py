"""Decides whether a model runs on a GPU, and with what. Never loads one.

Called by the executor. `auto` falls back to the CPU and says why; what was asked for by name is had or refused.
"""

import importlib.util
from dataclasses import dataclass
from typing import Literal

import torch

from loopwright.core.errors import Unavailable
from loopwright.core.model_info import WeightDtype
from loopwright.engine.cuda.decoder import misfit
from loopwright.engine.cuda.judged import judged
from loopwright.engine.cuda.matrices import FEWER_BITS
from loopwright.engine.loaded_model import ModelConfig

DeviceName = Literal["auto", "cpu", "cuda"]
AttentionName = Literal["auto", "flashinfer", "sdpa"]

_FP8_CAPABILITY = (8, 9)  # from which on Triton has e4m3


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What computes on `device`. `attention` is as DeviceParts takes it; `reason` is for people."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    has_kernels: bool
    reason: str
    fewer_bits: WeightDtype | None = None  # how matrices are kept, if not in `dtype`
    num_ranks: int = 1  # that share the model

    @property
    def weights(self) -> WeightDtype:
        """As engine.dtype spells it, never "auto"."""
        return self.fewer_bits or ("float32" if self.dtype == torch.float32 else "bfloat16")


def choose_device(
    device: DeviceName, config: ModelConfig, dtype: WeightDtype = "auto", attention: AttentionName = "auto",
    *, is_deterministic: bool = False,
) -> DeviceChoice | None:  # fmt: skip
    """None is the CPU. Raises Unavailable when what was asked for by name cannot be had."""
    if device == "cpu" or (device == "auto" and is_deterministic):
        return None
    why = _why_not(config, dtype)
    if why is not None:
        if device == "auto":
            return None
        raise Unavailable(f"engine.device: 'cuda' cannot run this model: {why}", field="engine.device")
    if is_deterministic:
        raise Unavailable(
            "engine.deterministic: on a GPU a row's bits depend on its batch, since matrix products take other kernels "
            "for other sizes",
            hint="engine.device = 'cpu' is deterministic",
            field="engine.deterministic",
        )
    kept = torch.float32 if dtype == "float32" else torch.bfloat16
    has_kernels = importlib.util.find_spec("triton") is not None
    chosen, note = _attention(attention, kept)
    name = torch.cuda.get_device_name()
    kernels = "" if has_kernels else "; no Triton here, so small operations are torch's"
    fewer: WeightDtype | None = dtype if dtype in FEWER_BITS else None
    weights = f"{str(kept)[6:]}, weights in {judged(fewer)}" if fewer else str(kept)[6:]
    return DeviceChoice(
        torch.device("cuda"), kept, chosen, has_kernels, f"{name}, {weights}, attention by {note}{kernels}", fewer
    )


def describe_gpu(attention: AttentionName = "auto") -> str | None:
    """The GPU that torch sees and what prompts would attend with, for people; None where it sees none. Raises
    Unavailable for an attention that cannot be had."""
    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name()}, attention by {_attention(attention, torch.bfloat16)[1]}"


def _why_not(config: ModelConfig, dtype: WeightDtype) -> str | None:
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    if dtype == "stored":
        return f"engine.dtype 'stored' is for the CPU; on a GPU are bfloat16, float32, {', '.join(FEWER_BITS)}"
    if dtype in FEWER_BITS:
        if importlib.util.find_spec("triton") is None:
            return f"engine.dtype {dtype!r} needs Triton, which is not installed"
        if dtype == "fp8" and torch.cuda.get_device_capability() < _FP8_CAPABILITY:
            return f"engine.dtype 'fp8' needs compute capability 8.9; {torch.cuda.get_device_name()} has less"
    return misfit(config)


def _attention(wanted: AttentionName, dtype: torch.dtype) -> tuple[str, str]:
    """The back-end, and how it is told of."""
    if wanted == "sdpa":
        return "sdpa", "sdpa, as asked for"
    missing = None
    if dtype != torch.bfloat16:
        missing = f"FlashInfer has no {str(dtype)[6:]}"
    elif importlib.util.find_spec("flashinfer") is None:
        missing = "FlashInfer is not installed: pip install 'loopwright[cuda]'"
    if missing is None:
        return "flashinfer", "FlashInfer"
    if wanted == "flashinfer":
        raise Unavailable(f"engine.attention: 'flashinfer' cannot be had: {missing}", field="engine.attention")
    return "sdpa", f"sdpa without graphs, many times slower ({missing})"
