"""A loaded model on a device: its weights, and the layers between the operations. Never samples and never stores KV
itself.

Implements what the model runner asks of a model; rows of one token come from the decode steps, with their tables on the
device. `misfit` says which models it cannot run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.attention import PagedAttention, new_places
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.matrices import KindOf, Matrix
from loopwright.engine.cuda.operations import Operations, Rotation
from loopwright.engine.loaded_model import LoadedModel, ModelConfig, Rope
from loopwright.engine.transfer import to_device

_FITTING = ("llama", "mistral", "qwen2", "qwen3")

_MATRICES = ("qkv", "output", "gate_up", "down")

Attend = Callable[[int, Tensor], Tensor]
"""(layer, query [num_tokens, num_heads, head_dim]) → [num_tokens, num_heads · head_dim]."""


def misfit(config: ModelConfig) -> str | None:
    """Why a model of these sizes cannot run on a device; None if it can."""
    if config.architecture not in _FITTING:
        return f"the architecture {config.architecture!r} runs on the CPU alone; on CUDA are {', '.join(_FITTING)}"
    if config.score_scale is not None and config.score_scale != config.head_dim**-0.5:
        return f"scores are multiplied with {config.score_scale:g}, not with head_dim ** -0.5"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    attention_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Matrix
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


class DeviceDecoder:
    """Matrices as `kind_of` their names says, all else in `dtype`, on the cache's device; the residual stream and
    logits in float32."""

    def __init__(
        self, model: LoadedModel, cache: DeviceKvCache, attention: PagedAttention, operations: Operations,
        dtype: torch.dtype, kind_of: KindOf,
    ) -> None:  # fmt: skip
        assert misfit(model.config) is None, misfit(model.config)
        self._config, self._attention, self._operations = model.config, attention, operations
        self._ranks = model.ranks
        self.cache, self.device = cache, cache.device
        self.vocab_size = model.config.vocab_size

        def placed(name: str) -> Tensor:
            return model.weights[name].to(cache.device, dtype).contiguous()

        def kept(name: str) -> Matrix:
            is_tied = name == "head" and model.config.is_head_tied
            weight = model.own_rows(model.weights["embedding"]) if is_tied else model.weights[name]
            return Matrix.of(weight, kind_of(name), cache.device, dtype)

        def layer(index: int) -> _Layer:
            prefix = f"layers.{index}."
            names = {"output": "attention_output", "output_bias": "attention_output_bias"}
            found = {field: prefix + names.get(field, field) for field in _Layer.__slots__}
            parts: dict[str, Any] = {
                field: (kept if field in _MATRICES else placed)(name) if name in model.weights else None
                for field, name in found.items()
            }
            return _Layer(**parts)

        self.embedding = placed("embedding")
        is_shared = model.config.is_head_tied and kind_of("head") == "plain"
        own = model.own_rows(self.embedding)
        self._head = Matrix("plain", own, None, own.shape[1]) if is_shared else kept("head")
        self._final_norm = placed("final_norm")
        self._layers = [layer(index) for index in range(model.config.num_layers)]
        ropes = {one: replace(one, frequencies=one.frequencies.to(cache.device)) for one in dict.fromkeys(model.ropes)}
        self.ropes: tuple[Rope, ...] = tuple(ropes[one] for one in model.ropes)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        matrices = [
            one for layer in self._layers for one in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]  # fmt: skip
        return sum(one.nbytes for one in (*matrices, self._head))

    def embed(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] → float32 [num_tokens, hidden_size]."""
        return torch.nn.functional.embedding(token_ids.to(self.cache.device), self.embedding).float()

    def forward(
        self, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow], kept: Tensor | None = None
    ) -> Tensor:
        """Runs all layers over the tokens of `rows`, one after the other; `hidden` [num_tokens, hidden_size] is
        overwritten. Hidden states of the tokens with the indices `kept`, in ascending order, or of all: behind its KV,
        the last layer computes no others."""
        places = to_device(new_places(rows), self.cache.device)
        self.cache.positions[places] = positions.int()
        planned = self._attention.plan(rows, positions)
        return self._run_layers(hidden, self._rotations(positions), places, planned.attend, kept)[0]

    def decode(self, buffers: DecodeBuffers, num_rows: int) -> Tensor:
        """One token of each of the first `num_rows` rows of the buffers: float32 logits [num_rows, vocab_size]."""
        return self._ranks.side_by_side(self.decode_own(buffers, num_rows))

    def decode_own(self, buffers: DecodeBuffers, num_rows: int) -> Tensor:
        """As `decode`, of several ranks the logits of this one's tokens alone."""
        hidden, places = self._operations.begin(buffers, num_rows, self.embedding, self.cache.positions)
        table, lens = buffers.table[:num_rows], buffers.lens[:num_rows]
        rotations = self._rotations(buffers.positions[:num_rows])
        _, normalized = self._run_layers(
            hidden,
            rotations,
            places,
            lambda layer, query: self._operations.attend(query, self.cache.layers[layer], table, lens),
        )
        return self._operations.logits(normalized, self._head)

    def forward_beside(
        self, buffers: DecodeBuffers, num_rows: int, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow],
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """`decode` and `forward` in one: the tokens share the products, so that weights are read once, and each kind
        attends its own way. Logits of the rows of the buffers, and the hidden states of `rows`' kept tokens."""
        begun, own_places = self._operations.begin(buffers, num_rows, self.embedding, self.cache.positions)
        places = to_device(new_places(rows), self.cache.device)
        self.cache.positions[places] = positions.int()
        planned = self._attention.plan(rows, positions)
        table, lens = buffers.table[:num_rows], buffers.lens[:num_rows]

        def attend(layer: int, query: Tensor) -> Tensor:
            own = self._operations.attend(query[:num_rows], self.cache.layers[layer], table, lens)
            return torch.cat([own, planned.attend(layer, query[num_rows:])])

        residual = torch.cat([begun, hidden])
        rotations = self._rotations(torch.cat([buffers.positions[:num_rows].long(), positions]))
        if kept is not None:
            kept = torch.cat([torch.arange(num_rows, device=kept.device), kept + num_rows])
        residual, normalized = self._run_layers(
            residual, rotations, torch.cat([own_places.long(), places]), attend, kept
        )
        return self._logits(normalized[:num_rows]), residual[num_rows:]

    def normalize(self, hidden: Tensor) -> Tensor:
        """As a decode step does it, so in the weights' dtype; float32 [num_tokens, hidden_size]."""
        return self._operations.add_norm(None, hidden.contiguous(), self._final_norm, self._config.norm_epsilon).float()

    def logits(self, normalized: Tensor) -> Tensor:
        """[num_tokens, hidden_size] → float32 [num_tokens, vocab_size]."""
        return self._logits(normalized.to(self.embedding.dtype))

    def _rotations(self, positions: Tensor) -> dict[Rope, Rotation]:
        return {rope: self._operations.rotation(positions, rope) for rope in dict.fromkeys(self.ropes)}

    def _run_layers(
        self, residual: Tensor, rotations: dict[Rope, Rotation], places: Tensor, attend: Attend,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Adds what all layers give to the residual stream. That stream and its final norm, of the kept tokens."""
        operations, epsilon, head_dim = self._operations, self._config.norm_epsilon, self._config.head_dim
        num_tokens = len(residual)
        added: Tensor | None = None
        for index, (layer, rope) in enumerate(zip(self._layers, self.ropes, strict=True)):
            normalized = operations.add_norm(added, residual, layer.attention_norm, epsilon)
            qkv = operations.project(normalized, layer.qkv, layer.qkv_bias).view(num_tokens, -1, head_dim)
            if layer.query_norm is not None:
                qkv = self._norm_heads(qkv, layer)
            query = operations.rotate_and_store(
                qkv, rotations[rope], places, self.cache.layers[index], self._config.num_heads
            )
            narrow = kept if index == len(self._layers) - 1 else None
            if narrow is not None and not len(narrow):
                return residual[narrow], normalized[narrow]
            attended = attend(index, query)
            if narrow is not None:
                residual, attended = residual[narrow], attended[narrow]
            added = self._project_onto(residual, attended, layer.output, layer.output_bias)
            normalized = operations.add_norm(added, residual, layer.mlp_norm, epsilon)
            added = self._project_onto(residual, operations.gate(normalized, layer.gate_up), layer.down, None)
        return residual, operations.add_norm(added, residual, self._final_norm, epsilon)

    def _norm_heads(self, qkv: Tensor, layer: _Layer) -> Tensor:
        assert layer.query_norm is not None
        assert layer.key_norm is not None
        num_heads, num_kv_heads = self._config.num_heads, self._config.num_kv_heads
        query, key, value = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        return torch.cat([self._norm_each(query, layer.query_norm), self._norm_each(key, layer.key_norm), value], dim=1)

    def _norm_each(self, heads: Tensor, weight: Tensor) -> Tensor:
        """[num_tokens, num_heads, head_dim] → the same."""
        rows = heads.float().reshape(-1, heads.shape[-1])
        return self._operations.add_norm(None, rows, weight, self._config.norm_epsilon).view(heads.shape)

    def _project_onto(self, residual: Tensor, vectors: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor | None:
        """As Operations.project_onto, of all ranks."""
        if self._ranks.num_ranks == 1:
            return self._operations.project_onto(residual, vectors, weight, bias)
        return self._ranks.add_up(self._operations.project(vectors, weight, bias))

    def _logits(self, normalized: Tensor) -> Tensor:
        """Of all ranks."""
        return self._ranks.side_by_side(self._operations.logits(normalized, self._head))
