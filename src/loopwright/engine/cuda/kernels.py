"""The operations of a decoder as Triton kernels, one launch each. Never allocates more than its results.

Equal to TorchOperations up to rounding. Imported only where there is Triton, which comes with torch's CUDA builds.
"""

from collections.abc import Collection

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.engine.cuda import (
    adjust_kernels,
    attention_kernels,
    draw_kernels,
    expert_kernels,
    top_kernels,
)
from loopwright.engine.cuda.buffers import DecodeBuffers
from loopwright.engine.cuda.experts import Mixture
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.operations import Activation, HeadNorms, Reach, Rotation, WideUse
from loopwright.engine.cuda.products import FastProducts, OwnProducts, Products
from loopwright.engine.cuda.row_adjustments import AdjustmentTables
from loopwright.engine.cuda.sampling import RowSamplings, ordered_top
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import Rope

_HEADS = 8  # of one program of rotate_and_store
_CHUNK = 4096  # ids of one program of the search for the best


class TritonOperations:
    """Implements Operations on a CUDA device."""

    can_be_captured = True

    def __init__(self, alike: Collection[MatrixKind] | None = None) -> None:
        """With `alike` no row's bits depend on the others: matrices of the kinds in it are cut in ways that give equal
        bits, all others in one."""
        self._is_deterministic = alike is not None
        self._products: Products = FastProducts() if alike is None else OwnProducts(alike)

    def rotation(self, positions: Tensor, rope: Rope) -> Rotation:
        num_tokens, num_pairs = len(positions), len(rope.frequencies)
        cos = torch.empty(num_tokens, num_pairs, dtype=torch.float32, device=positions.device)
        sin = torch.empty_like(cos)
        _rotation[(num_tokens,)](
            positions, rope.frequencies, cos, sin, num_pairs, rope.magnitude, PAIRS=triton.next_power_of_2(num_pairs)
        )
        return cos, sin

    def add_norm(
        self, added: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype,
        added_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        num_tokens, size = residual.shape
        out = torch.empty(num_tokens, size, dtype=dtype, device=residual.device)
        block = triton.next_power_of_2(size)
        _add_norm[(num_tokens,)](
            residual if added is None else added, residual, weight, added_weight, out, size, epsilon,
            HAS_ADDED=added is not None, IS_NORMED=added_weight is not None, BLOCK=block,
            num_warps=8 if block > 2048 else 4,
        )  # fmt: skip
        return out

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, places: Tensor, kv: Tensor, num_heads: int, norms: HeadNorms | None,
        *, is_kept: bool = False,
    ) -> Tensor:  # fmt: skip
        num_tokens, all_heads, head_dim = qkv.shape
        num_kv_heads = kv.shape[3]
        query = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
        query_parts = triton.cdiv(num_heads, _HEADS)
        query_norm, key_norm, epsilon = (None, None, 0.0) if norms is None else (norms.query, norms.key, norms.epsilon)
        _rotate_and_store[(num_tokens, query_parts + triton.cdiv(num_kv_heads, _HEADS))](
            qkv, *rotation, places, kv, query, query_norm, key_norm, num_heads, num_kv_heads, query_parts,
            all_heads * head_dim, epsilon, D=head_dim, DP=triton.next_power_of_2(head_dim), HEADS=_HEADS,
            SIZE=BLOCK_SIZE, HAS_NORMS=norms is not None, IS_KEPT=is_kept, num_warps=2,
        )  # fmt: skip
        return query

    def project(self, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor:
        return self._products.project(vectors, matrix, bias)

    def logits(self, vectors: Tensor, head: Matrix) -> Tensor:
        return self._products.logits(vectors, head)

    def project_onto(self, residual: Tensor, vectors: Tensor, matrix: Matrix, bias: Tensor | None) -> Tensor | None:
        return self._products.project_onto(residual, vectors, matrix, bias)

    def gate(self, vectors: Tensor, gate_up: Matrix, activation: Activation) -> Tensor:
        return self._products.gate(vectors, gate_up, is_gelu=activation == "gelu")

    def measure(self, use: WideUse, matrix: Matrix) -> None:
        self._products.measure(use, matrix)

    def mix(self, vectors: Tensor, mixture: Mixture) -> Tensor:
        logits = self.logits(vectors, mixture.router)
        return expert_kernels.mix(vectors, mixture, logits, is_deterministic=self._is_deterministic)

    def reach(self, table: Tensor, lens: Tensor, positions: Tensor, window: int) -> Reach:
        return attention_kernels.reach(table, lens, positions, window)

    def attend(self, query: Tensor, kv: Tensor, table: Tensor, lens: Tensor, reach: Reach | None) -> Tensor:
        tiling = attention_kernels.FIXED
        if not self._is_deterministic:
            tiling = attention_kernels.singles_tiling(len(lens), kv.shape[3], query.shape[2], table.shape[1])
        return attention_kernels.attend(query, kv, table, lens, tiling, reach=reach)

    def begin(
        self, buffers: DecodeBuffers, num_rows: int, embedding: Tensor, scale: float, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden_size = embedding.shape[1]
        hidden = torch.empty(num_rows, hidden_size, dtype=torch.float32, device=embedding.device)
        places = torch.empty(num_rows, dtype=torch.int32, device=embedding.device)
        _begin[(num_rows,)](
            buffers.table, buffers.inputs, buffers.lens, embedding, positions, hidden, places, hidden_size,
            scale, buffers.table.stride(0), buffers.inputs.stride(0), SIZE=BLOCK_SIZE,
            BLOCK=triton.next_power_of_2(hidden_size),
        )  # fmt: skip
        return hidden, places

    def end_greedy(self, buffers: DecodeBuffers, num_rows: int, logits: Tensor) -> None:
        vocab_size = logits.shape[1]
        parts = triton.cdiv(vocab_size, _CHUNK)
        best = torch.empty(num_rows, parts, dtype=torch.int32, device=logits.device)
        found = torch.empty(3, num_rows, parts, dtype=torch.float32, device=logits.device)
        _best_of_chunk[(num_rows, parts)](logits, best, found, vocab_size, parts, num_rows * parts, CHUNK=_CHUNK)
        _end_greedy[(num_rows,)](
            best, found, buffers.outputs, buffers.inputs, parts, num_rows * parts, buffers.inputs.stride(0),
            PARTS=triton.next_power_of_2(parts), num_warps=1,
        )  # fmt: skip

    def draw(self, logits: Tensor, scores: Tensor, samplings: RowSamplings, numbers: Tensor) -> Tensor:
        return draw_kernels.draw(logits, scores, samplings, numbers)

    def adjust(self, logits: Tensor, tables: AdjustmentTables) -> Tensor:
        return adjust_kernels.adjust(logits, tables)

    def note(self, tables: AdjustmentTables, token_ids: Tensor) -> None:
        adjust_kernels.note(tables, token_ids)

    def top(self, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
        if values.dtype == torch.float32 and size <= top_kernels.MAX_TOP:
            return top_kernels.ordered_top(values, size)
        return ordered_top(values, size)

    def listed(self, buffers: DecodeBuffers, logits: Tensor, size: int, *, is_end: bool) -> Tensor:
        return top_kernels.listed(buffers, logits, size, is_end=is_end)

    def advance(self, buffers: DecodeBuffers, num_rows: int) -> None:
        _advance[(triton.cdiv(num_rows, 256),)](
            buffers.outputs, buffers.inputs, num_rows, buffers.inputs.stride(0), BLOCK=256
        )


@triton.jit
def _rotation(positions, frequencies, cos, sin, num_pairs, magnitude, PAIRS: tl.constexpr):
    token = tl.program_id(0)
    pair = tl.arange(0, PAIRS)
    mask = pair < num_pairs
    angle = tl.load(positions + token).to(tl.float32) * tl.load(frequencies + pair, mask=mask, other=0.0)
    tl.store(cos + token * num_pairs + pair, tl.cos(angle) * magnitude, mask=mask)
    tl.store(sin + token * num_pairs + pair, tl.sin(angle) * magnitude, mask=mask)


@triton.jit
def _add_norm(
    added, residual, weight, added_weight, out, size, epsilon, HAS_ADDED: tl.constexpr, IS_NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < size
    at = token * size + column
    values = tl.load(residual + at, mask=mask, other=0.0)
    if HAS_ADDED:
        more = tl.load(added + at, mask=mask, other=0.0).to(tl.float32)
        if IS_NORMED:
            more *= 1.0 / tl.sqrt(tl.sum(more * more, axis=0) / size + epsilon)
            more *= tl.load(added_weight + column, mask=mask, other=0.0)
        values += more
        tl.store(residual + at, values, mask=mask)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / size + epsilon)
    weights = tl.load(weight + column, mask=mask, other=0.0)
    tl.store(out + at, (values * scale * weights).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _rotated(
    source, at, mask, cos, sin, norm, column, epsilon, D: tl.constexpr, HEADS: tl.constexpr, DP: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """[HEADS, DP] of float32, each head normed, if at all, and each pair turned."""
    heads = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORMS:
        scale = 1.0 / tl.sqrt(tl.sum(heads * heads, axis=1) / D + epsilon)
        heads *= scale[:, None] * tl.load(norm + column, mask=column < D, other=0.0)
    even, odd = tl.split(tl.reshape(heads, (HEADS, DP // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (HEADS, DP))


@triton.jit
def _rotate_and_store(
    qkv, cos, sin, places, kv, query, query_norm, key_norm, num_heads, num_kv_heads, query_parts, token_stride, epsilon,
    D: tl.constexpr, DP: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, HAS_NORMS: tl.constexpr,
    IS_KEPT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pair = tl.arange(0, DP // 2)
    turn = token * (D // 2) + pair
    cosines = tl.load(cos + turn, mask=pair < D // 2, other=0.0)[None, :]
    sines = tl.load(sin + turn, mask=pair < D // 2, other=0.0)[None, :]
    column = tl.arange(0, DP)[None, :]
    source = qkv + token * token_stride
    if part < query_parts:
        head = part * HEADS + tl.arange(0, HEADS)[:, None]
        mask = (head < num_heads) & (column < D)
        turned = _rotated(
            source, head * D + column, mask, cosines, sines, query_norm, column, epsilon, D, HEADS, DP, HAS_NORMS
        )
        tl.store(query + (token * num_heads + head) * D + column, turned.to(query.dtype.element_ty), mask=mask)
    else:
        head = (part - query_parts) * HEADS + tl.arange(0, HEADS)[:, None]
        mask = (head < num_kv_heads) & (column < D)
        key = (num_heads + head) * D + column
        turned = _rotated(source, key, mask, cosines, sines, key_norm, column, epsilon, D, HEADS, DP, HAS_NORMS)
        at = (num_heads + num_kv_heads + head) * D + column
        values = tl.load(source + at, mask=mask, other=0.0).to(tl.float32)
        is_bad = tl.sum(tl.where(tl.abs(values) < float("inf"), 0, 1), axis=1)[:, None] > 0  # NaN compares as false
        turned = tl.where(is_bad, float("nan"), turned)
        values = tl.where(is_bad, 0.0, values)
        place = tl.load(places + token).to(tl.int64)
        target = (place // SIZE * 2 * SIZE + place % SIZE) * num_kv_heads * D + head * D + column
        tl.store(kv + target, turned.to(kv.dtype.element_ty), mask=mask)
        tl.store(kv + target + SIZE * num_kv_heads * D, values.to(kv.dtype.element_ty), mask=mask)
        if IS_KEPT:
            tl.store(source + key, turned.to(qkv.dtype.element_ty), mask=mask)
            tl.store(source + at, values.to(qkv.dtype.element_ty), mask=mask & is_bad)  # others are there


@triton.jit
def _begin(
    table, inputs, lens, embedding, positions, hidden, places, hidden_size, scale, table_stride, stride,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_len = tl.load(inputs + 2 * stride + row)
    place = tl.load(table + row * table_stride + kv_len // SIZE) * SIZE + kv_len % SIZE
    tl.store(places + row, place)
    tl.store(lens + row, kv_len + 1)
    tl.store(positions + place, tl.load(inputs + stride + row))
    column = tl.arange(0, BLOCK)
    mask = column < hidden_size
    vector = tl.load(embedding + tl.load(inputs + row).to(tl.int64) * hidden_size + column, mask=mask, other=0.0)
    tl.store(hidden + row * hidden_size + column, vector.to(tl.float32) * scale, mask=mask)


@triton.jit
def _best_of_chunk(logits, best, found, vocab_size, parts, plane, CHUNK: tl.constexpr):
    """Of one chunk of a row: the first of its largest logits, that logit, the sum of exp(logit - it), and the sum."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * CHUNK + tl.arange(0, CHUNK)
    mask = column < vocab_size
    values = tl.load(logits + row * vocab_size + column, mask=mask, other=-float("inf"))
    is_bad = tl.sum(tl.where(mask & ~(tl.abs(values) < float("inf")), 1, 0), axis=0)
    top = tl.max(values, axis=0)
    at = row * parts + part
    tl.store(best + at, part * CHUNK + tl.argmax(values, axis=0))
    tl.store(found + at, top)
    tl.store(found + plane + at, tl.sum(tl.where(mask, tl.exp(values - top), 0.0), axis=0))
    tl.store(found + 2 * plane + at, is_bad.to(tl.float32))


@triton.jit
def _end_greedy(best, found, outputs, inputs, parts, plane, stride, PARTS: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, PARTS)
    mask = part < parts
    at = row * parts + part
    tops = tl.load(found + at, mask=mask, other=-float("inf"))
    top = tl.max(tops, axis=0)
    sums = tl.load(found + plane + at, mask=mask, other=0.0)
    total = tl.sum(tl.where(mask, sums * tl.exp(tops - top), 0.0), axis=0)
    is_bad = tl.sum(tl.load(found + 2 * plane + at, mask=mask, other=0.0), axis=0) > 0
    has_failed = tl.load(inputs + 4 * stride + row) | is_bad.to(tl.int32)
    ids = tl.load(best + at, mask=mask, other=2147483647)
    token = tl.min(tl.where(tops == top, ids, 2147483647), axis=0)
    token = tl.where(is_bad, 0, token)
    tl.store(outputs + row, token)
    tl.store(outputs + stride + row, (-tl.log(total)).to(tl.int32, bitcast=True))
    tl.store(outputs + 2 * stride + row, has_failed)
    tl.store(inputs + 4 * stride + row, has_failed)
    growth = tl.load(inputs + 3 * stride + row)
    tl.store(inputs + row, token)
    tl.store(inputs + stride + row, tl.load(inputs + stride + row) + growth)
    tl.store(inputs + 2 * stride + row, tl.load(inputs + 2 * stride + row) + growth)


@triton.jit
def _advance(outputs, inputs, num_rows, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < num_rows
    growth = tl.load(inputs + 3 * stride + row, mask=mask)
    tl.store(inputs + row, tl.load(outputs + row, mask=mask), mask=mask)
    tl.store(inputs + 4 * stride + row, tl.load(outputs + 2 * stride + row, mask=mask), mask=mask)
    tl.store(inputs + stride + row, tl.load(inputs + stride + row, mask=mask) + growth, mask=mask)
    tl.store(inputs + 2 * stride + row, tl.load(inputs + 2 * stride + row, mask=mask) + growth, mask=mask)
