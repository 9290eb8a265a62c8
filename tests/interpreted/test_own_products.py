"""Products by which no row's bits depend on the others: who multiplies which rows, and what it takes to be trusted."""

import dataclasses

import pytest
import torch
from torch import Tensor

from loopwright.engine.cuda import product_kernels, products, tilings
from loopwright.engine.cuda.matrices import Matrix, MatrixKind
from loopwright.engine.cuda.operations import TorchOperations
from loopwright.engine.cuda.products import OwnProducts, Use, by_cublas

CPU = torch.device("cpu")
USES: tuple[Use, ...] = ("project", "onto", "logits", "silu", "gelu")
GENERATOR = torch.Generator().manual_seed(4)
VECTORS = torch.randn(150, 48, generator=GENERATOR).bfloat16()
MATRIX = Matrix("plain", torch.randn(16, 48, generator=GENERATOR).bfloat16(), None, 48)


def result(own: OwnProducts, use: Use, vectors: Tensor = VECTORS, matrix: Matrix = MATRIX) -> Tensor:
    match use:
        case "project":
            return own.project(vectors, matrix, None)
        case "logits":
            return own.logits(vectors, matrix)
        case "onto":
            residual = torch.ones(len(vectors), matrix.num_outputs)
            assert own.project_onto(residual, vectors, matrix, None) is None
            return residual
        case _:
            return own.gate(vectors, matrix, is_gelu=use == "gelu")


class Another:
    """In the place of cuBLAS: the kernels' bits, but for numbers of rows for which one result is off by the least."""

    def __init__(self, *wrong: int) -> None:
        self.wrong, self.num_rows = wrong, []

    def __call__(self, use: Use, vectors: Tensor, matrix: Matrix, out: Tensor) -> None:
        self.num_rows.append(len(vectors))
        OwnProducts(())._by_kernels(use, vectors, matrix, out, None)
        if len(vectors) in self.wrong:
            bits = out.view(torch.int32 if out.dtype == torch.float32 else torch.int16)
            bits[-1, -1] ^= 1


@pytest.fixture
def alone() -> dict[Use, Tensor]:
    """By the kernels, which are cut in one way."""
    return {use: result(OwnProducts(()), use) for use in USES}


def test_another_multiplies_the_rows_for_which_all_of_its_bits_were_equal(
    monkeypatch: pytest.MonkeyPatch, alone: dict[Use, Tensor]
) -> None:
    monkeypatch.setattr(products, "PIECES", (64, 50))
    for wrong, usual in (((), [64, 64]), ((64,), [50, 50, 50]), ((64, 50), [])):
        for use in USES:
            tried = [50] if use == "logits" else [50, 64]
            expected = usual
            if use == "logits":  # in the smallest pieces alone
                expected = [] if 50 in wrong else [50, 50, 50]
            another = Another(*wrong)
            monkeypatch.setattr(products, "by_cublas", another)
            own = OwnProducts(())
            assert torch.equal(result(own, use), alone[use])
            assert sorted(another.num_rows) == sorted([*tried, *expected])
            another.num_rows.clear()
            assert torch.equal(result(own, use), alone[use])
            assert another.num_rows == expected


def test_where_there_is_no_memory_for_a_trial_the_kernels_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(products, "by_cublas", full)
    own = OwnProducts(())
    assert torch.equal(own.project(VECTORS[:48], MATRIX, None)[:32], own.project(VECTORS[:32], MATRIX, None))


def test_steps_are_tried_by_their_own_number_of_rows_and_other_numbers_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    another = Another()
    monkeypatch.setattr(products, "by_cublas", another)
    monkeypatch.setattr(products, "PIECES", (151,))
    own = OwnProducts(())
    for num_rows in (1, 32, 47, 49, 150):
        own.project(VECTORS[:num_rows], MATRIX, None)
    assert another.num_rows == []
    own.project(VECTORS[:48], MATRIX, None)
    assert sorted(another.num_rows) == [48, 48, 151]  # what is new is tried in pieces too, before there is a prompt
    own.project(VECTORS[:48], MATRIX, torch.zeros(16).bfloat16())
    assert len(another.num_rows) == 3  # what has a bias is the kernels'


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_fewer_bits_are_never_anothers(kind: MatrixKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "by_cublas", None)
    matrix = Matrix.of(MATRIX.values.float(), kind, CPU, torch.bfloat16)
    assert OwnProducts(()).project(VECTORS[:48], matrix, None).shape == (48, 16)


def test_what_stands_for_cublas_here_is_the_same_product(alone: dict[Use, Tensor]) -> None:
    for use in USES:
        out = torch.ones_like(alone[use])
        by_cublas(use, VECTORS, MATRIX, out)
        assert (out.float() - alone[use].float()).square().mean().sqrt() < 0.01 * alone[use].float().std()
    expected = TorchOperations().gate(VECTORS, MATRIX, "gelu").float()
    assert (alone["gelu"].float() - expected).square().mean().sqrt() < 0.01 * expected.std()


def test_the_inputs_are_in_as_many_parts_whatever_the_number_of_rows() -> None:
    for kind in ("plain", "int8", "int4"):
        for num_outputs, size in ((6144, 4096), (4096, 14336), (128256, 4096), (2048, 2048)):
            values = torch.empty(num_outputs, 1, dtype=torch.int16)
            matrix = Matrix(kind, values, None, size)
            for alike in ((), (kind,)):
                found = [tilings.own_tiling(matrix, rows, alike, is_gated=False) for rows in (1, 9, 30, 100, 256, 9000)]
                assert len({one.chunks for one in found}) == 1
                assert not found[-1].is_split
                assert {dataclasses.replace(one, chunks=1) for one in found} == {tilings.FIXED} or alike


def test_ways_that_add_up_in_another_order_do_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one of the ways are off by the least."""
    product = product_kernels.product

    def off(vectors, matrix, bias, tiling, *others, **options):
        found = product(vectors, matrix, bias, tiling, *others, **options)
        if tiling == tilings.OWN["plain"][1]:
            found.view(torch.int32)[0, -1] ^= 1
        return found

    assert product_kernels.agree("plain", CPU)
    monkeypatch.setattr(product_kernels, "product", off)
    assert not product_kernels.agree("plain", CPU)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_ways_in_several_parts_agree_too(kind: MatrixKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_kernels, "TRIED_SIZES", (1040,))
    ways = dict(product_kernels.compared(kind, CPU))
    assert {one.chunks for one in ways} == {1, 2}
    assert any(one.is_split for one in ways)
    assert all(ways.values())
