"""What the decoder does between its matrix products, as a protocol, and in torch: the reference of the kernels.

Never holds weights. The decoder calls it; `kernels` has the same in Triton, each operation one launch.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

from loopwright.engine.cuda import processing
from loopwright.engine.cuda.buffers import DecodeBuffers, places_of
from loopwright.engine.cuda.experts import Mixture, mixed
from loopwright.engine.cuda.matrices import Matrix
from loopwright.engine.cuda.row_adjustments import AdjustmentTables, adjusted_by, counted
from loopwright.engine.cuda.sampling import RowSamplings, ordered_top
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import Rope

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of each token's pairs, magnitude applied: float32 [num_tokens, head_dim / 2] each."""


Activation = Literal["silu", "gelu"]
"""Of a gate; gelu is its tanh approximation."""

WideUse = Literal["project", "onto", "silu", "gelu"]
"""What becomes of a product: bfloat16, a sum with the residual stream, or a gate with that activation."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """Root-mean-square norms over each head of queries and keys, before they are rotated: float32 [head_dim] each."""

    query: Tensor
    key: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What tokens see in layers with a window: of the places before them those whose position is less than `window`
    before their own. `positions` [places] are the cache's; before `first` [num_rows] a row sees nothing, if given."""

    window: int
    positions: Tensor
    first: Tensor | None = None


class Operations(Protocol):
    """All tensors are contiguous and on one device. The residual stream is float32, all else has the weights' dtype."""

    can_be_captured: bool  # the launches are the same whatever lengths and ids are

    def rotation(self, positions: Tensor, rope: Rope) -> Rotation: ...

    def add_norm(
        self, added: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype,
        added_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """residual += added, in place; then its root-mean-square norm, in `dtype`: [num_tokens, size]. With
        `added_weight` what is added is the norm of `added`. Weights are float32 [size]."""
        ...

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, places: Tensor, kv: Tensor, num_heads: int, norms: HeadNorms | None,
        *, is_kept: bool = False,
    ) -> Tensor:  # fmt: skip
        """Norms, if the model has that, and rotates queries and keys of [num_tokens, heads, head_dim], writes keys and
        values to `places` of a layer's cache [num_blocks, 2, 16, num_kv_heads, head_dim], and returns the queries
        [num_tokens, num_heads, head_dim]. With `is_kept`, `qkv` has the keys and values as the cache has them.

        Cached values are finite: a head whose values are not gets zeros and keys of NaN, so that whoever sees it fails
        and whoever has it hidden adds nothing."""
        ...

    def project(self, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor:
        """[num_tokens, size] → [num_tokens, num_outputs]."""
        ...

    def logits(self, vectors: Tensor, head: Matrix) -> Tensor:
        """[num_tokens, size] → float32 [num_tokens, num_outputs]."""
        ...

    def project_onto(self, residual: Tensor, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor | None:
        """As `project`, for what is added to the residual stream: None if that is done, else what `add_norm` adds."""
        ...

    def gate(self, vectors: Tensor, gate_up: Matrix, activation: Activation) -> Tensor:
        """activation(gate · vectors) · (up · vectors), gates above ups: [num_tokens, size] → [num_tokens, outputs]."""
        ...

    def measure(self, use: WideUse, matrix: Matrix) -> None:
        """Finds out which of its ways multiplies thousands of rows with such a matrix the fastest; once, at start."""
        ...

    def mix(self, vectors: Tensor, mixture: Mixture) -> Tensor:
        """What a mixture of experts gives for [num_tokens, size]: float32, of the same shape."""
        ...

    def reach(self, table: Tensor, lens: Tensor, positions: Tensor, window: int) -> Reach:
        """Of rows of one token, for all layers with that window; table and lens as for `attend`, `positions` [places]
        with those of the new tokens."""
        ...

    def attend(self, query: Tensor, kv: Tensor, table: Tensor, lens: Tensor, reach: Reach | None) -> Tensor:
        """Attention of rows of one token: query [num_rows, num_heads, head_dim], a layer's cache, table [num_rows,
        max_blocks], lens [num_rows] with the new token, and what the layer's window leaves → [num_rows, num_heads ·
        head_dim]."""
        ...

    def begin(
        self, buffers: DecodeBuffers, num_rows: int, embedding: Tensor, scale: float, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual stream [num_rows, hidden_size], of embeddings times `scale`, and the places of the rows' tokens
        [num_rows]; notes their positions in `positions` [places] and their lengths in the buffers."""
        ...

    def end_greedy(self, buffers: DecodeBuffers, num_rows: int, logits: Tensor) -> None:
        """Writes the likeliest ids of float32 logits [num_rows, vocab_size] (the lowest on a tie) and their
        log-probabilities to the outputs, and makes them the inputs of the next step."""
        ...

    def advance(self, buffers: DecodeBuffers, num_rows: int) -> None:
        """Makes the outputs the inputs of the next step, one position on."""
        ...

    def draw(self, logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor:
        """A token for each row, from what the filters leave of float32 `scores` [num_rows, vocab_size], in which -inf
        is not allowed, with `numbers` float64 [num_rows]: int32 [3, num_rows] as the outputs of DecodeBuffers. Raw
        log-probabilities are by `logits`, whose rows fail if these are not finite."""
        ...

    def adjust(self, logits: Tensor, tables: AdjustmentTables) -> Tensor:
        """Scores of the first rows: logits after penalties, biases and lists of allowed tokens."""
        ...

    def note(self, tables: AdjustmentTables, token_ids: Tensor) -> None:
        """Counts what the first rows chose, int32 [num_rows]."""
        ...

    def top(self, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The largest of values [num_rows, num_ids] and their ids, [num_rows, size] each: falling, the lowest id first
        on a tie."""
        ...

    def listed(self, buffers: DecodeBuffers, logits: Tensor, size: int, *, is_end: bool) -> Tensor:
        """The `size` likeliest tokens of float32 logits [num_rows, vocab_size] of the first rows of the buffers, 256 at
        most: int32 [num_rows, 2 * size + 4], which are ids, log-probabilities as bits of float32, their probability
        together as those of float64, how many are finite, and 1 if the row failed. The outputs say that already; with
        `is_end` this writes them and the next inputs, as `end_greedy` does."""
        ...


class TorchOperations:
    """Implements Operations, on any device."""

    can_be_captured = False

    def rotation(self, positions: Tensor, rope: Rope) -> Rotation:
        angles = positions.float()[:, None] * rope.frequencies
        return angles.cos() * rope.magnitude, angles.sin() * rope.magnitude

    def add_norm(
        self, added: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype,
        added_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if added is not None:
            if added_weight is not None:
                added = torch.rms_norm(added.float(), weight.shape, added_weight, epsilon)
            residual.add_(added)
        return torch.rms_norm(residual, weight.shape, weight, epsilon).to(dtype)

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, places: Tensor, kv: Tensor, num_heads: int, norms: HeadNorms | None,
        *, is_kept: bool = False,
    ) -> Tensor:  # fmt: skip
        num_kv_heads, head_dim = kv.shape[3:]
        query, key, value = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        if norms is not None:
            query = torch.rms_norm(query.float(), (head_dim,), norms.query, norms.epsilon)
            key = torch.rms_norm(key.float(), (head_dim,), norms.key, norms.epsilon)
        block, offset = (places // BLOCK_SIZE).long(), (places % BLOCK_SIZE).long()
        is_bad = ~value.isfinite().all(-1, keepdim=True)
        key = _rotated(key, rotation).masked_fill(is_bad, torch.nan).to(kv.dtype)
        value = value.masked_fill(is_bad, 0.0).to(kv.dtype)
        kv[block, 0, offset], kv[block, 1, offset] = key, value
        turned = _rotated(query, rotation).to(qkv.dtype)
        if is_kept:
            qkv[:, num_heads:] = torch.cat([key, value], dim=1)
        return turned

    def project(self, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor:
        return multiplied(vectors, matrix, bias)

    def logits(self, vectors: Tensor, head: Matrix) -> Tensor:
        return multiplied(vectors, head).float()

    def project_onto(self, residual: Tensor, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor | None:
        return multiplied(vectors, matrix, bias)

    def gate(self, vectors: Tensor, gate_up: Matrix, activation: Activation) -> Tensor:
        gate, up = multiplied(vectors, gate_up).float().chunk(2, dim=-1)
        opened = silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")
        return (opened * up).to(vectors.dtype)

    def measure(self, use: WideUse, matrix: Matrix) -> None:
        """Nothing: there is one way."""

    def mix(self, vectors: Tensor, mixture: Mixture) -> Tensor:
        return mixed(vectors, mixture)

    def reach(self, table: Tensor, lens: Tensor, positions: Tensor, window: int) -> Reach:
        return Reach(window, positions)

    def attend(self, query: Tensor, kv: Tensor, table: Tensor, lens: Tensor, reach: Reach | None) -> Tensor:
        num_blocks = -(-int(lens.max()) // BLOCK_SIZE)
        num_rows, num_heads, head_dim = query.shape
        gathered = kv[table[:, :num_blocks].long()]  # [num_rows, blocks, 2, 16, num_kv_heads, head_dim]
        key, value = (gathered[:, :, one].flatten(1, 2).transpose(1, 2) for one in (0, 1))
        is_seen = torch.arange(num_blocks * BLOCK_SIZE, device=lens.device) < lens[:, None]
        if reach is not None:
            own = reach.positions[places_of(table, lens - 1).long()]
            keys = reach.positions.view(-1, BLOCK_SIZE)[table[:, :num_blocks].long()].flatten(1)
            is_seen &= own[:, None] - keys < reach.window
        # What is not seen may be anything, and 0 · NaN is NaN.
        key, value = (one.masked_fill(~is_seen[:, None, :, None], 0.0) for one in (key, value))
        grouped = query.view(num_rows, kv.shape[3], -1, head_dim)
        attended = scaled_dot_product_attention(grouped, key, value, attn_mask=is_seen[:, None, None])
        return attended.reshape(num_rows, num_heads * head_dim)

    def begin(
        self, buffers: DecodeBuffers, num_rows: int, embedding: Tensor, scale: float, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        kv_lens = buffers.kv_lens[:num_rows]
        places = places_of(buffers.table[:num_rows], kv_lens)
        buffers.lens[:num_rows] = kv_lens + 1
        positions[places.long()] = buffers.positions[:num_rows]
        return torch.nn.functional.embedding(buffers.ids[:num_rows].long(), embedding).float().mul_(scale), places

    def end_greedy(self, buffers: DecodeBuffers, num_rows: int, logits: Tensor) -> None:
        best = logits.argmax(-1)
        logprobs = logits.gather(1, best[:, None])[:, 0] - logits.logsumexp(-1)
        buffers.outputs[0, :num_rows] = best.int()
        buffers.outputs[1, :num_rows] = logprobs.clamp(max=0.0).view(torch.int32)
        buffers.outputs[2, :num_rows] = (~logits.isfinite()).any(-1).int() | buffers.failed[:num_rows]
        self.advance(buffers, num_rows)

    def draw(self, logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor:
        return processing.draw(logits, scores, samplings, numbers)

    def adjust(self, logits: Tensor, tables: AdjustmentTables) -> Tensor:
        return adjusted_by(logits, tables)

    def note(self, tables: AdjustmentTables, token_ids: Tensor) -> None:
        counted(tables, token_ids)

    def top(self, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
        return ordered_top(values, size)

    def listed(self, buffers: DecodeBuffers, logits: Tensor, size: int, *, is_end: bool) -> Tensor:
        if is_end:
            self.end_greedy(buffers, len(logits), logits)
        values, ids = ordered_top(logits, size)
        logprobs = (values.double() - logits.logsumexp(-1).double()[:, None]).float()
        covered = logprobs.double().exp().sum(-1, keepdim=True)
        num_finite = logprobs.isfinite().sum(-1, keepdim=True)
        failed = buffers.outputs[2, : len(logits), None]
        parts = (ids.int(), logprobs.view(torch.int32), covered.view(torch.int32), num_finite.int(), failed)
        return torch.cat(parts, dim=1)

    def advance(self, buffers: DecodeBuffers, num_rows: int) -> None:
        growth = buffers.advance[:num_rows]
        buffers.ids[:num_rows] = buffers.outputs[0, :num_rows]
        buffers.failed[:num_rows] = buffers.outputs[2, :num_rows]
        buffers.positions[:num_rows] += growth
        buffers.kv_lens[:num_rows] += growth


def multiplied(vectors: Tensor, matrix: Matrix, bias: Tensor | None = None) -> Tensor:
    """By torch: [num_tokens, size] → [num_tokens, num_outputs], in the vectors' dtype. Weights of fewer bits multiply
    in float32, as the kernels do."""
    if matrix.kind == "plain":
        return linear(vectors, matrix.weights(), bias)
    bias = None if bias is None else bias.float()
    return linear(vectors.float(), matrix.weights(), bias).to(vectors.dtype)


def _rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turns each pair (2i, 2i + 1) of [num_tokens, num_heads, head_dim]; float32."""
    cos, sin = (one[:, None] for one in rotation)
    even, odd = heads.float()[..., 0::2], heads.float()[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
