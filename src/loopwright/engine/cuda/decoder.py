"""A loaded model on a device: its weights, and the layers between the operations. Never samples and never stores KV
itself.

Implements what the model runner asks of a model; rows of one token come from the decode steps, with their tables on the
device.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from loopwright.engine.attention import AttentionRow
from loopwright.engine.cuda.attention import PagedAttention, PlannedRows, new_places
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.layers import DeviceLayer, activation, embedding_scale, misfit
from loopwright.engine.cuda.matrices import KindOf, Matrix
from loopwright.engine.cuda.operations import Operations, Rotation
from loopwright.engine.loaded_model import LoadedModel, Rope
from loopwright.engine.transfer import to_device

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, query [num_tokens, num_heads, head_dim], own) → [num_tokens, num_heads · head_dim], as PlannedRows does."""

Planned = Callable[[], PlannedRows]
"""A step's rows, which are planned when somebody asks for them."""


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

        self._dtype = dtype
        self._activation, self._embedding_scale = activation(model.config), embedding_scale(model.config)
        self.embedding = model.weights["embedding"].to(cache.device, dtype).contiguous()
        own = model.own_rows(self.embedding)
        if model.config.is_head_tied and kind_of("head") == "plain":
            self._head = Matrix("plain", own, None, own.shape[1])
        else:
            weight = model.own_rows(model.weights["embedding"]) if model.config.is_head_tied else model.weights["head"]
            self._head = Matrix.of(weight, kind_of("head"), cache.device, dtype)
        self._final_norm = model.weights["final_norm"].to(cache.device, torch.float32)
        self._layers = [
            DeviceLayer.of(model, index, cache.device, dtype, kind_of) for index in range(model.config.num_layers)
        ]
        ropes = {one: replace(one, frequencies=one.frequencies.to(cache.device)) for one in dict.fromkeys(model.ropes)}
        self.ropes: tuple[Rope, ...] = tuple(ropes[one] for one in model.ropes)

    @property
    def hidden_size(self) -> int:
        return self._config.hidden_size

    @property
    def head_dim(self) -> int:
        return self._config.head_dim

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self._config.num_heads // self._config.num_kv_heads

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that a step of one token reads."""
        return self._head.nbytes + sum(layer.step_nbytes for layer in self._layers)

    def measure(self) -> None:
        """Finds out how prompts are multiplied the fastest; once, at start. All layers have the same sizes."""
        layer, operations = self._layers[0], self._operations
        if layer.qkv_bias is None:
            operations.measure("project", layer.qkv)
        if layer.gate_up is not None:
            operations.measure(self._activation, layer.gate_up)
        for matrix, bias, post_norm in (
            (layer.output, layer.output_bias, layer.attention_post_norm), (layer.down, None, layer.mlp_post_norm)
        ):  # fmt: skip
            if matrix is not None and bias is None:
                is_added = self._ranks.num_ranks == 1 and post_norm is None
                operations.measure("onto" if is_added else "project", matrix)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[num_tokens] → float32 [num_tokens, hidden_size]."""
        vectors = torch.nn.functional.embedding(token_ids.to(self.cache.device), self.embedding)
        return vectors.float() if self._embedding_scale == 1 else vectors.float().mul_(self._embedding_scale)

    def forward(
        self, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow], kept: Tensor | None = None
    ) -> Tensor:
        """Runs all layers over the tokens of `rows`, one after the other; `hidden` [num_tokens, hidden_size] is
        overwritten. Hidden states of the tokens with the indices `kept`, in ascending order, or of all: behind its KV,
        the last layer computes no others."""
        places = to_device(new_places(rows), self.cache.device)
        self.cache.positions[places] = positions.int()
        planned = self._planned(rows, positions)
        rotations = self._rotations(positions)
        return self._run_layers(hidden, rotations, places, _attend(planned), kept, planned)[0]

    def decode(self, buffers: DecodeBuffers, num_rows: int) -> Tensor:
        """One token of each of the first `num_rows` rows of the buffers: float32 logits [num_rows, vocab_size]."""
        return self._ranks.side_by_side(self.decode_own(buffers, num_rows))

    def decode_own(self, buffers: DecodeBuffers, num_rows: int) -> Tensor:
        """As `decode`, of several ranks the logits of this one's tokens alone."""
        hidden, places = self.begin(buffers, num_rows)
        table, lens = buffers.table[:num_rows], buffers.lens[:num_rows]
        rotations = self._rotations(buffers.positions[:num_rows])
        _, normalized = self._run_layers(hidden, rotations, places, self.attend_singles(table, lens))
        return self._operations.logits(normalized, self._head)

    def forward_beside(
        self, buffers: DecodeBuffers, num_rows: int, hidden: Tensor, positions: Tensor, rows: Sequence[AttentionRow],
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """`decode` and `forward` in one: the tokens share the products, so that weights are read once, and each kind
        attends its own way. Logits of the rows of the buffers, and the hidden states of `rows`' kept tokens."""
        begun, own_places = self.begin(buffers, num_rows)
        places = to_device(new_places(rows), self.cache.device)
        self.cache.positions[places] = positions.int()
        planned = self._planned(rows, positions)
        attend_singles = self.attend_singles(buffers.table[:num_rows], buffers.lens[:num_rows])

        def attend(layer: int, query: Tensor, own: Tensor) -> Tensor:
            others = planned().attend(layer, query[num_rows:], own[num_rows:])
            return torch.cat([attend_singles(layer, query[:num_rows], own), others])

        residual = torch.cat([begun, hidden])
        rotations = self._rotations(torch.cat([buffers.positions[:num_rows].long(), positions]))
        if kept is not None:
            kept = torch.cat([torch.arange(num_rows, device=kept.device), kept + num_rows])
        residual, normalized = self._run_layers(
            residual, rotations, torch.cat([own_places.long(), places]), attend, kept, planned
        )
        return self._logits(normalized[:num_rows]), residual[num_rows:]

    def begin(self, buffers: DecodeBuffers, num_rows: int) -> tuple[Tensor, Tensor]:
        """As Operations.begin."""
        return self._operations.begin(
            buffers, num_rows, self.embedding, self._embedding_scale, self.cache.positions
        )  # fmt: skip

    def run_layers(self, residual: Tensor, positions: Tensor, places: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """All layers over tokens that `attend` knows: the residual stream, which is overwritten, and its final norm."""
        return self._run_layers(residual, self._rotations(positions), places, attend)

    def normalize(self, hidden: Tensor) -> Tensor:
        """As a decode step does it, so in the weights' dtype; float32 [num_tokens, hidden_size]."""
        return self._norm(None, hidden.contiguous(), self._final_norm).float()

    def logits(self, normalized: Tensor) -> Tensor:
        """[num_tokens, hidden_size] → float32 [num_tokens, vocab_size]."""
        return self._logits(normalized.to(self.embedding.dtype))

    def attend_singles(self, table: Tensor, lens: Tensor) -> Attend:
        """Of rows of one token."""
        operations, cache = self._operations, self.cache
        windows = [window for window in dict.fromkeys(cache.windows) if window is not None]
        reaches = {window: operations.reach(table, lens, cache.positions, window) for window in windows}

        def attend(layer: int, query: Tensor, own: Tensor) -> Tensor:
            window = cache.windows[layer]
            reach = None if window is None else reaches[window]
            return operations.attend(query, cache.layers[layer], table, lens, reach)

        return attend

    def _planned(self, rows: Sequence[AttentionRow], positions: Tensor) -> Planned:
        """Attention of rows whose positions the cache has, planned when it is first asked for."""
        return cache(lambda: self._attention.plan(rows, positions))

    def _rotations(self, positions: Tensor) -> dict[Rope, Rotation]:
        return {rope: self._operations.rotation(positions, rope) for rope in dict.fromkeys(self.ropes)}

    def _run_layers(
        self, residual: Tensor, rotations: dict[Rope, Rotation], places: Tensor, attend: Attend,
        kept: Tensor | None = None, planned: Planned | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Adds what all layers give to the residual stream. That stream and its final norm, of the kept tokens. With
        `planned`, attention may take keys and values from where the layer's product left them."""
        operations, num_tokens = self._operations, len(residual)
        num_heads, head_dim = self._config.num_heads, self._config.head_dim
        added: Tensor | None = None
        added_norm: Tensor | None = None
        for index, (layer, rope) in enumerate(zip(self._layers, self.ropes, strict=True)):
            normalized = self._norm(added, residual, layer.attention_norm, added_norm)
            qkv = operations.project(normalized, layer.qkv, layer.qkv_bias).view(num_tokens, -1, head_dim)
            takes_own = planned is not None and planned().takes_own  # the device has the first product to do meanwhile
            query = operations.rotate_and_store(
                qkv, rotations[rope], places, self.cache.layers[index], num_heads, layer.head_norms, is_kept=takes_own
            )
            narrow = kept if index == len(self._layers) - 1 else None
            if narrow is not None and not len(narrow):
                return residual[narrow], normalized[narrow]
            attended = attend(index, query, qkv[:, num_heads:])
            if narrow is not None:
                residual, attended = residual[narrow], attended[narrow]
            added_norm = layer.attention_post_norm
            added = self._project_onto(residual, attended, layer.output, layer.output_bias, added_norm)
            normalized = self._norm(added, residual, layer.mlp_norm, added_norm)
            added, added_norm = self._mlp(residual, normalized, layer), layer.mlp_post_norm
        return residual, self._norm(added, residual, self._final_norm, added_norm)

    def _norm(
        self, added: Tensor | None, residual: Tensor, weight: Tensor, added_weight: Tensor | None = None
    ) -> Tensor:
        epsilon = self._config.norm_epsilon
        return self._operations.add_norm(added, residual, weight, epsilon, self._dtype, added_weight)

    def _mlp(self, residual: Tensor, normalized: Tensor, layer: DeviceLayer) -> Tensor | None:
        """What is still to be added."""
        if layer.mixture is not None:
            return self._ranks.add_up(self._operations.mix(normalized, layer.mixture))
        assert layer.gate_up is not None
        assert layer.down is not None
        gated = self._operations.gate(normalized, layer.gate_up, self._activation)
        return self._project_onto(residual, gated, layer.down, None, layer.mlp_post_norm)

    def _project_onto(
        self, residual: Tensor, vectors: Tensor, weight: Matrix, bias: Tensor | None, post_norm: Tensor | None
    ) -> Tensor | None:
        """As Operations.project_onto, of all ranks, and not yet done if it has a norm to come."""
        if self._ranks.num_ranks == 1 and post_norm is None:
            return self._operations.project_onto(residual, vectors, weight, bias)
        return self._ranks.add_up(self._operations.project(vectors, weight, bias))

    def _logits(self, normalized: Tensor) -> Tensor:
        """Of all ranks."""
        return self._ranks.side_by_side(self._operations.logits(normalized, self._head))


def _attend(planned: Planned) -> Attend:
    return lambda layer, query, own: planned().attend(layer, query, own)
