"""Decides whether a model runs on a GPU, and with what. Never loads one.

Called by the executor. `auto` falls back to the CPU and says why; what was asked for by name is had or refused.
"""

import importlib.util
from dataclasses import dataclass
from typing import Literal

import torch

from loopwright.core.errors import Unavailable
from loopwright.core.model_info import WeightDtype
from loopwright.engine.cuda.judged import judged
from loopwright.engine.cuda.layers import misfit
from loopwright.engine.cuda.matrices import FEWER_BITS
from loopwright.engine.loaded_model import ModelConfig

DeviceName = Literal["auto", "cpu", "cuda"]
AttentionName = Literal["auto", "flashinfer", "sdpa"]

_FLASHINFER_HEAD_DIMS = (64, 128)
_FP8_CAPABILITY = (8, 9)  # from which on Triton has e4m3


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What computes on `device`. `attention` and the last are as DeviceParts takes them; `reason` is for people."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    has_kernels: bool
    reason: str
    fewer_bits: WeightDtype | None = None  # how matrices are kept, if not in `dtype`
    num_ranks: int = 1  # that share the model
    is_deterministic: bool = False

    @property
    def weights(self) -> WeightDtype:
        """As engine.dtype spells it, never "auto"."""
        return self.fewer_bits or ("float32" if self.dtype == torch.float32 else "bfloat16")


def choose_device(
    device: DeviceName, config: ModelConfig, dtype: WeightDtype = "auto", attention: AttentionName = "auto",
    *, is_deterministic: bool = False,
) -> DeviceChoice | None:  # fmt: skip
    """None is the CPU. Raises Unavailable when what was asked for by name cannot be had."""
    if device == "cpu":
        return None
    why = _why_not(dtype) or misfit(config) or _why_no_experts(config, dtype)
    why = why or (_why_not_deterministic(dtype, attention) if is_deterministic else None)
    if why is not None:
        if device == "auto":
            return None
        field, because = why if isinstance(why, tuple) else ("engine.device", f"'cuda' cannot run this model: {why}")
        raise Unavailable(f"{field}: {because}", field=field)
    kept = torch.float32 if dtype == "float32" else torch.bfloat16
    chosen, reason = _described(dtype, attention, config, is_deterministic=is_deterministic)
    return DeviceChoice(
        torch.device("cuda"), kept, chosen, _has_triton(), reason, dtype if dtype in FEWER_BITS else None,
        is_deterministic=is_deterministic,
    )  # fmt: skip


def describe_gpu(
    dtype: WeightDtype = "auto", attention: AttentionName = "auto", *, is_deterministic: bool = False
) -> str | None:
    """The GPU that torch sees and what a model would be computed with, for people; None where it sees none. Raises
    Unavailable for what cannot be had."""
    if not torch.cuda.is_available():
        return None
    why = _why_not(dtype) or (_why_not_deterministic(dtype, attention) if is_deterministic else None)
    if why is not None:
        raise Unavailable(why if isinstance(why, str) else f"{why[0]}: {why[1]}")
    return _described(dtype, attention, None, is_deterministic=is_deterministic)[1]


def _described(
    dtype: WeightDtype, attention: AttentionName, config: ModelConfig | None, *, is_deterministic: bool
) -> tuple[str, str]:
    """What prompts attend with, and how the whole is told of; without a model, what most would have."""
    kept = torch.float32 if dtype == "float32" else torch.bfloat16
    chosen, note = ("triton", "Triton") if is_deterministic else _attention(attention, kept, config)
    weights = f", weights in {judged(dtype)}" if dtype in FEWER_BITS else ""
    kernels = "" if _has_triton() else "; no Triton here, so small operations are torch's"
    deterministic = "; deterministic" if is_deterministic else ""
    name = torch.cuda.get_device_name()
    return chosen, f"{name}, {str(kept)[6:]}{weights}, attention by {note}{kernels}{deterministic}"


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _why_not(dtype: WeightDtype) -> str | None:
    """Why no GPU computes with such weights."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    if dtype == "stored":
        return f"engine.dtype 'stored' is for the CPU; on a GPU are bfloat16, float32, {', '.join(FEWER_BITS)}"
    if dtype in FEWER_BITS and not _has_triton():
        return f"engine.dtype {dtype!r} needs Triton, which is not installed"
    if dtype == "fp8" and torch.cuda.get_device_capability() < _FP8_CAPABILITY:
        return f"engine.dtype 'fp8' needs compute capability 8.9; {torch.cuda.get_device_name()} has less"
    return None


def _why_not_deterministic(dtype: WeightDtype, attention: AttentionName) -> tuple[str, str] | None:
    """The setting, and why a GPU cannot be deterministic with it."""
    if not _has_triton():
        return "engine.deterministic", "on a GPU it needs Triton, which is not installed"
    if dtype == "float32":
        return "engine.deterministic", "on a GPU it is for bfloat16 and fewer bits; engine.dtype is 'float32'"
    if attention != "auto":
        return "engine.deterministic", f"on a GPU attention is Triton's then; engine.attention is {attention!r}"
    return None


def _why_no_experts(config: ModelConfig, dtype: WeightDtype) -> tuple[str, str] | str | None:
    """Why a mixture of experts, if the model is one, is not computed on a GPU with such weights."""
    if config.experts is None:
        return None
    if dtype in FEWER_BITS:
        return "engine.dtype", f"on a GPU experts are bfloat16 or float32; this mixture of experts was to be {dtype!r}"
    return None if _has_triton() else "a mixture of experts needs Triton, which is not installed"


def _attention(wanted: AttentionName, dtype: torch.dtype, config: ModelConfig | None) -> tuple[str, str]:
    """The back-end, and how it is told of."""
    if wanted == "sdpa":
        return "sdpa", "sdpa, as asked for"
    missing = None
    if dtype != torch.bfloat16:
        missing = f"FlashInfer has no {str(dtype)[6:]}"
    elif importlib.util.find_spec("flashinfer") is None:
        missing = "FlashInfer is not installed: pip install 'loopwright[cuda]'"
    elif config is not None and config.head_dim not in _FLASHINFER_HEAD_DIMS:
        missing = f"FlashInfer's compiled kernels are for heads of 64 and 128, not of {config.head_dim}"
    if missing is None:
        has_windows = config is not None and any(window is not None for window in config.windows)
        return "flashinfer", "FlashInfer, and by Triton in layers with a window" if has_windows else "FlashInfer"
    if wanted == "flashinfer":
        raise Unavailable(f"engine.attention: 'flashinfer' cannot be had: {missing}", field="engine.attention")
    if _has_triton() and dtype == torch.bfloat16:
        return "triton", f"Triton ({missing})"
    return "sdpa", f"sdpa without graphs, many times slower ({missing})"
