"""The weights of a mixture of experts on a device, and the mixture in torch: the reference of the kernels.

Never batches: a token's result depends on nothing but the token. Made by the decoder, read by the operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from loopwright.engine.cuda.matrices import Matrix
from loopwright.engine.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """`router` [num_experts, hidden_size], `gate_up` [num_experts, 2 · size, hidden_size], gates above ups, and `down`
    [num_experts, hidden_size, size]. The shares of the `num_chosen` likeliest experts of a token are as softmax has
    them, or sum to one."""

    router: Matrix
    gate_up: Tensor
    down: Tensor
    num_chosen: int
    is_normalized: bool

    @classmethod
    def of(cls, model: LoadedModel, layer: int, device: torch.device, dtype: torch.dtype) -> "Mixture":
        sizes, weights, prefix = model.config.experts, model.weights, f"layers.{layer}."
        assert sizes is not None

        def stack(name: str) -> Tensor:
            names = [f"{prefix}experts.{number}.{name}" for number in range(sizes.num_experts)]
            return _stacked([weights[one] for one in names], device, dtype)

        router = Matrix.of(weights[f"{prefix}router"], "plain", device, dtype)
        return cls(router, stack("gate_up"), stack("down"), sizes.num_chosen, sizes.is_normalized)

    @property
    def num_experts(self) -> int:
        return len(self.gate_up)

    @property
    def step_nbytes(self) -> int:
        """Bytes of weights that one token reads."""
        return self.router.nbytes + (self.gate_up.nbytes + self.down.nbytes) * self.num_chosen // self.num_experts


def mixed(vectors: Tensor, mixture: Mixture) -> Tensor:
    """[num_tokens, hidden_size] → float32 of the same shape. Looks at what was chosen: on a GPU that is waited for."""
    probabilities = linear(vectors, mixture.router.weights()).float().softmax(dim=-1)
    shares, chosen = probabilities.topk(mixture.num_chosen, dim=-1)
    if mixture.is_normalized:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    output = torch.zeros_like(vectors, dtype=torch.float32)
    for number in sorted(set(chosen.flatten().tolist())):
        tokens, places = torch.where(chosen == number)
        gate, up = linear(vectors[tokens], mixture.gate_up[number]).float().chunk(2, dim=-1)
        found = linear((silu(gate) * up).to(vectors.dtype), mixture.down[number]).float()
        output.index_add_(0, tokens, found * shares[tokens, places, None])
    return output


def _stacked(weights: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    """One below the other; in place, if they lie so already."""
    first = weights[0]
    is_stack = first.device.type == device.type and first.dtype == dtype and all(
        one.data_ptr() == first.data_ptr() + number * first.nbytes and one.is_contiguous()
        and one.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for number, one in enumerate(weights)
    )  # fmt: skip
    if is_stack:
        return first.as_strided((len(weights), *first.shape), (first.numel(), *first.stride()))
    stack = torch.empty(len(weights), *first.shape, dtype=dtype, device=device)
    for target, weight in zip(stack, weights, strict=True):
        target.copy_(weight)
    return stack
