"""Products and attention of the kernels beside torch's; the bits of a row, whoever is beside it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from loopwright.engine.attention import AttentionRow
from loopwright.engine.byte_model import BYTE_CONFIG
from loopwright.engine.cuda import product_kernels, tilings, token_kernels
from loopwright.engine.cuda.attention import SdpaAttention
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.operations import multiplied
from loopwright.engine.kv_cache import BLOCK_SIZE
from runner_rig import runs_of

CPU = torch.device("cpu")
KINDS: tuple[MatrixKind, ...] = ("plain", "fp8", "int8", "int4")
SIZES = (1, 2, 7, 32, 64)
SIZE = 160  # a group and a part of one


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def matrix_of(kind: MatrixKind, num_outputs: int = 70) -> Matrix:
    return Matrix.of(numbers(num_outputs, SIZE, seed=1) / 12, kind, CPU, torch.bfloat16)


def is_near(found: Tensor, expected: Tensor, most: float = 0.02) -> bool:
    """The interpreter rounds to bfloat16 by cutting off."""
    return bool((found.float() - expected.float()).square().mean().sqrt() < most * expected.float().std())


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_torchs(kind: MatrixKind) -> None:
    matrix, vectors, bias = matrix_of(kind), numbers(35, SIZE).bfloat16(), numbers(70, seed=2).bfloat16()
    some = [tilings.FIXED, tilings.tiling_for(matrix, 5, is_gated=False)]
    expected = multiplied(vectors.float(), dataclasses.replace(matrix), bias) if kind != "plain" else None
    if expected is None:
        expected = torch.nn.functional.linear(vectors.float(), matrix.values.float(), bias.float())
    for tiling in some:
        assert tiling is not None
        rows = vectors[: tiling.rows + 3]
        wanted = expected[: len(rows)]
        assert is_near(product_kernels.product(rows, matrix, bias, tiling, torch.float32), wanted)
        residual = numbers(len(rows), 70, seed=3)
        added = residual.clone()
        product_kernels.add_product(rows, matrix, bias, added, tiling)
        assert is_near(added - residual, wanted)
    gate, up = (expected - bias.float()).chunk(2, dim=-1)
    for tiling in (tilings.FIXED, tilings.tiling_for(matrix, 5, is_gated=True)):
        assert tiling is not None
        rows = vectors[: tiling.rows + 3]
        assert is_near(product_kernels.gated_product(rows, matrix, tiling), (silu(gate) * up)[: len(rows)])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_all_numbers_of_a_matrix_are_those_that_it_keeps(kind: MatrixKind) -> None:
    matrix = matrix_of(kind)
    assert is_near(product_kernels.numbers(matrix), matrix.weights(), 0.01)
    assert product_kernels.numbers(matrix).shape == (70, SIZE)


def test_fewer_bits_take_a_kernel_up_to_256_rows_and_torch_above() -> None:
    operations, matrix = TritonOperations(), matrix_of("int4", 16)
    for num_rows in (100, 257):
        vectors = numbers(num_rows, SIZE).bfloat16()
        expected = multiplied(vectors, matrix)
        assert is_near(operations.project(vectors, matrix, None), expected)
        assert is_near(operations.logits(vectors, matrix), expected)
        residual = torch.zeros(num_rows, 16)
        added = operations.project_onto(residual, vectors, matrix, None)
        assert (added is None) == (num_rows <= tilings.MOST_ROWS)
        assert is_near(residual if added is None else added, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_fixed_product_has_its_own_bits(kind: MatrixKind) -> None:
    """Also where wide tilings take over, which give the same."""
    matrix, vectors = matrix_of(kind, 40), numbers(64, SIZE).bfloat16()
    assert product_kernels.agree(kind, CPU)
    for alike in ((), (kind,)):
        operations = TritonOperations(alike)
        alone = [operations.logits(vectors[row : row + 1], matrix) for row in (0, 5, 63)]
        gated = [operations.gate(vectors[row : row + 1], matrix) for row in (0, 5, 63)]
        for size in SIZES:
            found, gates = operations.logits(vectors[:size], matrix), operations.gate(vectors[:size], matrix)
            for place, row in enumerate((0, 5, 63)):
                if row < size:
                    assert torch.equal(found[row], alone[place][0])
                    assert torch.equal(gates[row], gated[place][0])


def test_tilings_that_add_up_in_another_order_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = dataclasses.replace(tilings.WIDE, inputs=256)
    product = product_kernels.product

    def halved(vectors, matrix, bias, tiling, dtype=torch.bfloat16):
        if tiling != wide:
            return product(vectors, matrix, bias, tiling, dtype)
        half = Matrix("plain", matrix.values[:, ::2].contiguous(), None, matrix.size // 2)
        other = Matrix("plain", matrix.values[:, 1::2].contiguous(), None, matrix.size // 2)
        return sum(
            product(part.contiguous(), some, bias, tiling, dtype)
            for part, some in ((vectors[:, ::2], half), (vectors[:, 1::2], other))
        )

    monkeypatch.setattr(product_kernels, "WIDE", wide)
    monkeypatch.setattr(product_kernels, "product", halved)
    assert not product_kernels.agree("plain", CPU)


CONFIG = dataclasses.replace(BYTE_CONFIG, num_layers=1, num_heads=6, num_kv_heads=2)


def filled_cache(num_blocks: int) -> DeviceKvCache:
    cache = DeviceKvCache(CONFIG, num_blocks, CPU, torch.bfloat16)
    cache.layers[0].copy_(numbers(*cache.layers[0].shape))
    cache.positions.copy_(torch.arange(len(cache.positions)))
    return cache


def attended(backend, rows: list[AttentionRow], query: Tensor) -> Tensor:
    positions = torch.cat([torch.arange(row.kv_len, row.kv_len + row.num_tokens) for row in rows])
    return backend.plan(rows, positions).attend(0, query)


def test_attention_is_torchs_with_and_without_masks() -> None:
    cache, ours = filled_cache(12), None
    seen = [[(place <= own and (place + own) % 3 != 1) or place == own for place in range(44)] for own in range(30, 44)]
    hidden = [*seen[:5], [False] * 44, *seen[6:]]
    masks = [tuple(runs_of(one[: 31 + own]) for own, one in enumerate(rows)) for rows in (seen, hidden)]
    rows = [
        AttentionRow([3, 1, 7], 20, 20),
        AttentionRow([0, 2, 5], 30, 14, masks[0]),
        AttentionRow([4, 8], 17, 1),
        AttentionRow([9, 6, 10], 30, 14, masks[1]),
    ]
    query = numbers(49, 6, 16, seed=4).bfloat16()
    ours = attended(token_kernels.TokenAttention(cache, 6), rows, query)
    assert is_near(ours, attended(SdpaAttention(cache), rows, query))
    assert not ours[40].any()  # it sees nothing
    plain = [dataclasses.replace(row, mask=None) for row in rows]
    assert is_near(
        attended(token_kernels.TokenAttention(cache, 6), plain, query), attended(SdpaAttention(cache), plain, query)
    )


def test_a_tokens_attention_has_its_own_bits_however_its_row_is_cut() -> None:
    """Across the lengths at which parts grow, alone as a decode step has it, and beside others."""
    num_blocks = 34
    cache, query = filled_cache(2 * num_blocks), numbers(30, 6, 16, seed=5).bfloat16()
    blocks, others = list(range(num_blocks)), list(range(num_blocks, 2 * num_blocks))
    backend = token_kernels.TokenAttention(cache, 6)
    whole = attended(backend, [AttentionRow(blocks, 500, 30)], query)
    cut = [attended(backend, [AttentionRow(blocks, 500 + start, end - start)], query[start:end])
           for start, end in ((0, 7), (7, 13), (13, 30))]  # fmt: skip
    assert torch.equal(torch.cat(cut), whole)
    rows = [AttentionRow(others, 9, 5), AttentionRow(blocks, 500, 30), AttentionRow(others, 0, 3)]
    beside = attended(backend, rows, torch.cat([query[:5], query, query[:3]]))
    assert torch.equal(beside[5:35], whole)
    table = torch.tensor([others, blocks, blocks], dtype=torch.int32)
    places = [0, 11, 12]
    singles = TritonOperations(()).attend(
        query[places], cache.layers[0], table, torch.tensor([40, 512, 513], dtype=torch.int32)
    )
    assert torch.equal(singles[1:], whole[[11, 12]])
    assert is_near(whole, attended(SdpaAttention(cache), [AttentionRow(blocks, 500, 30)], query))


def test_every_token_is_in_one_tile_whose_parts_are_its_own() -> None:
    rng = np.random.default_rng(0)
    span = token_kernels.PARTS * 64
    for _ in range(50):
        rows = [AttentionRow(range(999), int(rng.integers(2000)), int(rng.integers(1, 700))) for _ in range(4)]
        num_shared = int(rng.integers(1, 11))
        wanted = [
            (number, row.kv_len + 1 + place) for number, row in enumerate(rows) for place in range(row.num_tokens)
        ]
        found, next_token = [], 0
        for tokens, tiles in token_kernels.launches(rows, num_shared):
            assert tokens.start == next_token
            next_token = tokens.stop
            assert tokens.stop - tokens.start <= 1024
            for number, first, count, length in tiles.tolist():
                assert 1 <= count <= num_shared
                assert first == len(found) - tokens.start
                assert (length - 1) // span == (length + count - 2) // span
                found += [(number, length + place) for place in range(count)]
        assert found == wanted
    assert BLOCK_SIZE == 16
