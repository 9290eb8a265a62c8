"""Products and attention of the kernels beside torch's; the bits of a row, whoever is beside it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from loopwright.engine.attention import AttentionRow
from loopwright.engine.byte_model import BYTE_CONFIG
from loopwright.engine.cuda import expert_kernels, product_kernels, tilings
from loopwright.engine.cuda.attention import SdpaAttention
from loopwright.engine.cuda.attention_kernels import FIXED
from loopwright.engine.cuda.cache import DeviceKvCache
from loopwright.engine.cuda.experts import Mixture, mixed
from loopwright.engine.cuda.kernels import TritonOperations
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.operations import HeadNorms, TorchOperations, multiplied
from loopwright.engine.cuda.tile_attention import TileAttention, launches
from loopwright.engine.kv_cache import BLOCK_SIZE
from loopwright.engine.loaded_model import ModelConfig
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
        gated = [operations.gate(vectors[row : row + 1], matrix, "silu") for row in (0, 5, 63)]
        for size in SIZES:
            found, gates = operations.logits(vectors[:size], matrix), operations.gate(vectors[:size], matrix, "silu")
            for place, row in enumerate((0, 5, 63)):
                if row < size:
                    assert torch.equal(found[row], alone[place][0])
                    assert torch.equal(gates[row], gated[place][0])


CONFIG = dataclasses.replace(BYTE_CONFIG, num_layers=1, num_heads=6, num_kv_heads=2)


def filled_cache(num_blocks: int, config: ModelConfig = CONFIG) -> DeviceKvCache:
    cache = DeviceKvCache(config, num_blocks, CPU, torch.bfloat16)
    cache.layers[0].copy_(numbers(*cache.layers[0].shape))
    cache.positions.copy_(torch.arange(len(cache.positions)))
    return cache


def attended(backend, rows: list[AttentionRow], query: Tensor) -> Tensor:
    positions = torch.cat([torch.arange(row.kv_len, row.kv_len + row.num_tokens) for row in rows])
    return backend.plan(rows, positions).attend(0, query, query[:, :0])


def test_attention_is_torchs_with_and_without_masks() -> None:
    cache = filled_cache(12)
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
    plain = [dataclasses.replace(row, mask=None) for row in rows]
    for is_deterministic in (False, True):
        backend = TileAttention(cache, 6, is_deterministic=is_deterministic)
        ours = attended(backend, rows, query)
        assert is_near(ours, attended(SdpaAttention(cache), rows, query))
        assert not ours[40].any()  # it sees nothing
        assert is_near(attended(backend, plain, query), attended(SdpaAttention(cache), plain, query))
        assert is_near(attended(backend, rows[2:3], query[:1]), attended(SdpaAttention(cache), rows[2:3], query[:1]))


@pytest.mark.parametrize(("is_deterministic", "head_dim"), [(False, 24), (True, 16)], ids=["fast", "deterministic"])
def test_windows_go_by_position_in_prompts_and_in_steps(is_deterministic: bool, head_dim: int) -> None:
    """Positions have gaps and go back; one token is far from all others, and sees itself alone."""
    window, num_blocks = 40, 60
    config = dataclasses.replace(CONFIG, head_dim=head_dim, windows=(window,))
    cache = filled_cache(num_blocks, config)
    rng = np.random.default_rng(0)
    mask = tuple(runs_of([place % 7 != 3 for place in range(251 + own)]) for own in range(41))
    rows = [
        AttentionRow(list(range(20)), 250, 41, mask),
        AttentionRow(list(range(20, 40)), 0, 60),
        AttentionRow(list(range(40, 60)), 299, 1),
    ]
    for row in rows:
        steps = np.array(rng.integers(0, 4, row.kv_len + row.num_tokens))
        steps[row.kv_len // 2] = -30
        position = np.cumsum(steps) + 100
        position[-1] += 500 * (row.kv_len == 0)
        cache.positions[row.block_ids[0] * BLOCK_SIZE :][: len(position)] = torch.from_numpy(position)
    query = numbers(102, 6, head_dim, seed=4).bfloat16()
    positions = torch.cat(
        [cache.positions[row.block_ids[0] * BLOCK_SIZE + row.kv_len :][: row.num_tokens] for row in rows]
    )
    backend = TileAttention(cache, 6, is_deterministic=is_deterministic)
    expected = SdpaAttention(cache).plan(rows, positions).attend(0, query, query[:, :0])
    found = backend.plan(rows, positions).attend(0, query, query[:, :0])
    assert is_near(found, expected)
    operations = TritonOperations(() if is_deterministic else None)
    table = torch.tensor([row.block_ids for row in rows], dtype=torch.int32)
    lens = torch.tensor([row.kv_len + row.num_tokens for row in rows], dtype=torch.int32)
    last = query[[40, 100, 101]]
    singles = operations.attend(last, cache.layers[0], table, lens, operations.reach(table, lens, cache.positions, 40))
    assert is_near(singles[1:], expected[[100, 101]])
    torchs = TorchOperations()
    reach = torchs.reach(table, lens, cache.positions, window)
    assert is_near(singles, torchs.attend(last.float(), cache.layers[0].float(), table, lens, reach))
    if is_deterministic:
        assert torch.equal(singles[1:], found[[100, 101]])


@pytest.mark.parametrize("head_dim", [16, 24])
@pytest.mark.parametrize("window", [None, 150])
def test_places_that_all_tokens_of_a_tile_see_are_compared_with_nothing(window: int | None, head_dim: int) -> None:
    """Rounds before a window, across where it begins, whole ones, and those of the tile's own tokens; one place within
    the whole ones is hidden by its position."""
    cache = filled_cache(60, dataclasses.replace(CONFIG, head_dim=head_dim, windows=(window,)))
    cache.positions[(20 + 15) * BLOCK_SIZE + 3] -= 400
    rows = [AttentionRow(list(range(20)), 250, 50), AttentionRow(list(range(20, 40)), 259, 60)]
    query = numbers(110, 6, head_dim, seed=4).bfloat16()
    own = query[:, :0]
    positions = torch.cat(
        [cache.positions[row.block_ids[0] * BLOCK_SIZE + row.kv_len :][: row.num_tokens] for row in rows]
    )
    expected = SdpaAttention(cache).plan(rows, positions).attend(0, query, own)
    planned = TileAttention(cache, 6).plan(rows, positions)
    assert is_near(planned.attend(0, query, own), expected)
    cache.layers[0][6, 0] = torch.nan  # places 96 to 111: who sees one of them fails
    num_failing = 50 if window is None else 111 + window - 250
    found = planned.attend(0, query, own)
    assert found[:num_failing].isnan().all()
    assert found[num_failing:].isfinite().all()


@pytest.mark.parametrize("alike", [None, ()], ids=["fast", "deterministic"])
def test_a_step_reads_no_page_before_the_window(alike: tuple[MatrixKind, ...] | None) -> None:
    cache = filled_cache(20, dataclasses.replace(CONFIG, windows=(30,)))
    operations = TritonOperations(alike)
    table, lens = torch.arange(20, dtype=torch.int32)[None].clone(), torch.tensor([320], dtype=torch.int32)
    reach = operations.reach(table, lens, cache.positions, 30)
    assert reach.first is not None
    assert reach.first.tolist() == [[290], [290]], "and from there on it sees all"
    table[:, :12] = 999_999  # an address that is nobody's
    found = operations.attend(numbers(1, 6, 16).bfloat16(), cache.layers[0], table, lens, reach)
    assert found.isfinite().all()


def test_a_tokens_attention_has_its_own_bits_however_its_row_is_cut() -> None:
    """Across the lengths at which parts grow, alone as a decode step has it, and beside others."""
    num_blocks = 34
    cache, query = filled_cache(2 * num_blocks), numbers(30, 6, 16, seed=5).bfloat16()
    blocks, others = list(range(num_blocks)), list(range(num_blocks, 2 * num_blocks))
    backend = TileAttention(cache, 6, is_deterministic=True)
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
        query[places], cache.layers[0], table, torch.tensor([40, 512, 513], dtype=torch.int32), None
    )  # fmt: skip
    assert torch.equal(singles[1:], whole[[11, 12]])
    assert is_near(whole, attended(SdpaAttention(cache), [AttentionRow(blocks, 500, 30)], query))


def test_every_token_is_in_one_tile_whose_parts_are_its_own() -> None:
    rng = np.random.default_rng(0)
    span = FIXED.max_parts * FIXED.places
    for _ in range(50):
        rows = [AttentionRow(range(999), int(rng.integers(2000)), int(rng.integers(1, 700))) for _ in range(4)]
        num_shared = int(rng.integers(1, 11))
        wanted = [
            (number, row.kv_len + 1 + place) for number, row in enumerate(rows) for place in range(row.num_tokens)
        ]
        found, next_token = [], 0
        for tokens, tiles in launches(rows, num_shared, FIXED):
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


def test_norms_before_and_after_and_over_heads_are_torchs() -> None:
    ours, torchs = TritonOperations(), TorchOperations()
    residual, added = numbers(5, 72), (3 * numbers(5, 72, seed=1)).bfloat16()
    weights = 1 + numbers(2, 72, seed=2) / 9
    streams = [residual.clone(), residual.clone()]
    norms = [
        one.add_norm(added, stream, weights[0], 1e-6, torch.bfloat16, weights[1])
        for one, stream in zip((ours, torchs), streams, strict=True)
    ]
    assert is_near(*norms)
    torch.testing.assert_close(*streams)
    assert not is_near(streams[0], residual + added, 0.1)
    rotation = torch.cos(numbers(5, 12)), torch.sin(numbers(5, 12))
    head_norms = HeadNorms(1 + numbers(24, seed=3) / 9, 1 + numbers(24, seed=4) / 9, 1e-6)
    qkv, places = numbers(5, 6 + 4, 24).bfloat16(), torch.tensor([3, 18, 40, 41, 7], dtype=torch.int32)
    caches = [torch.zeros(3, 2, BLOCK_SIZE, 2, 24, dtype=torch.bfloat16) for _ in range(2)]
    queries = [one.rotate_and_store(qkv, rotation, places, kv, 6, head_norms)
               for one, kv in zip((ours, torchs), caches, strict=True)]  # fmt: skip
    assert is_near(*queries)
    assert is_near(*caches)
    qkv[2, 8, 3], qkv[4, 9, 5] = float("inf"), float("nan")  # values of either KV head
    kept = [qkv.clone() for _ in range(2)]
    for one, own, kv in zip((ours, torchs), kept, caches, strict=True):
        one.rotate_and_store(own, rotation, places, kv, 6, head_norms, is_kept=True)
        cached = kv[places // BLOCK_SIZE, :, places % BLOCK_SIZE].flatten(1, 2)
        assert torch.equal(own[:, 6:].nan_to_num(9.0), cached.nan_to_num(9.0))
        assert torch.equal(own[:, :6], qkv[:, :6])
        assert [(row, head) for row, head in own[:, 6:].isnan().any(-1).nonzero().tolist()] == [(2, 0), (4, 1)]


@pytest.mark.parametrize("num_rows", [5, 40])
def test_gates_open_by_gelu_as_torchs_do(num_rows: int) -> None:
    """By the kernel of few rows, and behind torch's product."""
    matrix, vectors = matrix_of("plain"), numbers(num_rows, SIZE).bfloat16()
    ours, torchs = (one.gate(vectors, matrix, "gelu") for one in (TritonOperations(), TorchOperations()))
    assert is_near(ours, torchs)
    assert not is_near(ours, TorchOperations().gate(vectors, matrix, "silu"), 0.05)


def mixture_of(num_experts: int, num_chosen: int, *, is_normalized: bool) -> Mixture:
    router = Matrix.of(numbers(num_experts, SIZE, seed=7) / 3, "plain", CPU, torch.bfloat16)
    gate_up = (numbers(num_experts, 2 * 40, SIZE, seed=8) / 12).bfloat16()
    down = (numbers(num_experts, SIZE, 40, seed=9) / 6).bfloat16()
    return Mixture(router, gate_up, down, num_chosen, is_normalized)


@pytest.mark.parametrize(("num_tokens", "is_normalized"), [(1, True), (7, False), (90, True)])
def test_a_mixture_of_experts_is_torchs(num_tokens: int, is_normalized: bool) -> None:
    """Few and many pairs of an expert, and experts that nobody chose; sizes that end within a tile."""
    mixture = mixture_of(6, 3, is_normalized=is_normalized)
    vectors = numbers(num_tokens, SIZE).bfloat16()
    assert is_near(TritonOperations().mix(vectors, mixture), mixed(vectors, mixture))


@pytest.mark.parametrize("tiling", [*(one for _, one in expert_kernels.TILINGS), expert_kernels.MANY])
def test_every_way_to_cut_the_products_of_experts_gives_the_same(
    tiling: tilings.Tiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens of one expert are more than a tile; others have one, or none."""
    mixture, vectors = mixture_of(6, 1, is_normalized=False), numbers(140, SIZE).bfloat16()
    vectors[3:] = vectors[3]
    monkeypatch.setattr(expert_kernels, "tiling_for", lambda *_, **__: tiling)
    assert is_near(TritonOperations().mix(vectors, mixture), mixed(vectors, mixture))


def test_pairs_are_sorted_by_expert_and_those_of_one_stay_in_order() -> None:
    chosen = torch.randint(0, 9, (1500, 2), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    order, starts = expert_kernels.sorted_pairs(chosen, 9)
    assert order.tolist() == chosen.flatten().argsort(stable=True).tolist()
    assert starts.tolist() == [int((chosen < expert).sum()) for expert in range(10)]


def test_a_token_of_a_mixture_has_its_own_bits_and_its_own_failure() -> None:
    mixture, vectors = mixture_of(6, 3, is_normalized=True), numbers(33, SIZE).bfloat16()
    operations = TritonOperations(())
    whole = operations.mix(vectors, mixture)
    for place in (0, 17, 32):
        assert torch.equal(operations.mix(vectors[place : place + 1], mixture)[0], whole[place])
    vectors[5, 9] = torch.nan
    spoilt = operations.mix(vectors, mixture)
    assert spoilt[5].isnan().all()
    assert torch.equal(torch.cat([spoilt[:5], spoilt[6:]]), torch.cat([whole[:5], whole[6:]]))
