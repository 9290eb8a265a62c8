"""The weights of one layer on a device, whatever the architecture: what a model does not have is None.

Never computes. Made by the decoder, which reads off a layer what it does. `misfit` says which models cannot be had.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.engine.cuda.experts import Mixture
from loopwright.engine.cuda.matrices import KindOf, Matrix
from loopwright.engine.cuda.operations import Activation, HeadNorms
from loopwright.engine.loaded_model import LoadedModel, ModelConfig

_FITTING = ("llama", "mistral", "qwen2", "qwen3", "qwen3moe", "gemma3")


def misfit(config: ModelConfig) -> str | None:
    """Why a model of these sizes cannot run on a device; None if it can."""
    if config.architecture not in _FITTING:
        return f"the architecture {config.architecture!r} runs on the CPU alone; on CUDA are {', '.join(_FITTING)}"
    if _query_scale(config) != 1 and config.architecture != "gemma3":
        return f"scores are multiplied with {config.score_scale:g}, not with head_dim ** -0.5"
    return None


def embedding_scale(config: ModelConfig) -> float:
    """What an embedding is multiplied with."""
    return float(config.hidden_size**0.5) if config.architecture == "gemma3" else 1.0


def activation(config: ModelConfig) -> Activation:
    """Of the gates of its MLPs."""
    return "gelu" if config.architecture == "gemma3" else "silu"


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLayer:
    """Norms are float32, matrices as their kinds say. A layer has either an MLP or a mixture of experts."""

    attention_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    head_norms: HeadNorms | None
    output: Matrix
    output_bias: Tensor | None
    attention_post_norm: Tensor | None  # of what attention gives, before it is added
    mlp_norm: Tensor
    gate_up: Matrix | None
    down: Matrix | None
    mixture: Mixture | None
    mlp_post_norm: Tensor | None

    @classmethod
    def of(
        cls, model: LoadedModel, index: int, device: torch.device, dtype: torch.dtype, kind_of: KindOf
    ) -> "DeviceLayer":
        config, weights, prefix = model.config, model.weights, f"layers.{index}."

        def vector(name: str, dtype: torch.dtype = torch.float32) -> Tensor | None:
            weight = weights.get(prefix + name)
            return None if weight is None else weight.to(device, dtype).contiguous()

        def norm(name: str) -> Tensor:
            return weights[prefix + name].to(device, torch.float32).contiguous()

        def matrix(name: str) -> Matrix:
            return Matrix.of(weights[prefix + name], kind_of(prefix + name), device, dtype)

        has_experts = config.experts is not None
        norms = None
        if f"{prefix}query_norm" in weights:  # a scale of scores goes with them: it is on the query
            norms = HeadNorms(norm("query_norm") * _query_scale(config), norm("key_norm"), config.norm_epsilon)
        return cls(
            norm("attention_norm"), matrix("qkv"), vector("qkv_bias", dtype), norms, matrix("attention_output"),
            vector("attention_output_bias", dtype), vector("attention_post_norm"), norm("mlp_norm"),
            None if has_experts else matrix("gate_up"), None if has_experts else matrix("down"),
            Mixture.of(model, index, device, dtype) if has_experts else None, vector("mlp_post_norm"),
        )  # fmt: skip

    @property
    def step_nbytes(self) -> int:
        """Bytes of matrices that a step of one token reads."""
        parts = (self.qkv, self.output, self.gate_up, self.down)
        of_experts = 0 if self.mixture is None else self.mixture.step_nbytes
        return of_experts + sum(one.nbytes for one in parts if one is not None)


def _query_scale(config: ModelConfig) -> float:
    """Kernels multiply scores with head_dim ** -0.5; this is what a model wants beyond that."""
    return 1.0 if config.score_scale is None else config.score_scale * config.head_dim**0.5
