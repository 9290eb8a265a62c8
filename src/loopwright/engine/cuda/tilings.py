"""How the product of vectors with a matrix is cut, for how many rows: what each of the product kernels is compiled for.

Never launches anything. `tests/gpu/tilings.py` measures what is chosen from here.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from loopwright.engine.cuda.matrices import Matrix, MatrixKind

NARROW_ROWS = 32
"""The most rows for which a plain matrix is multiplied here and not by cuBLAS."""
MOST_ROWS = 256
"""The same for matrices of fewer bits: above, making them numbers once costs less than doing so for each few rows."""

SPAN = 256
"""Inputs that a part of a product is a multiple of."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut: `outputs`, `rows` and `inputs` of one round of a program; the latter whole groups.

    The inputs are in `chunks` parts, whose sums are added in order: each is a program of its own, if it `is_split`.
    With `folds`, scales meet the weights, which are rounded once more, and not the sums."""

    outputs: int
    rows: int
    inputs: int
    num_warps: int
    num_stages: int
    chunks: int = 1
    is_split: bool = False
    folds: bool = False


PRODUCT = (Tiling(16, 16, 512, 2, 3), Tiling(32, 32, 256, 4, 4))
GATED = (Tiling(64, 16, 128, 4, 4), Tiling(64, 32, 128, 8, 4))
"""By the most rows: the best of some dozen, measured at Llama's sizes on one H200."""
FEW_BITS = (
    Tiling(32, 8, 256, 2, 5), Tiling(64, 16, 128, 4, 6), Tiling(64, 32, 128, 4, 5),
    Tiling(64, 64, 128, 4, 4, folds=True), Tiling(128, 128, 128, 8, 3, folds=True),
)  # fmt: skip
FEW_BITS_GATED = (
    Tiling(32, 8, 128, 2, 6), Tiling(64, 16, 128, 4, 4), Tiling(64, 32, 128, 4, 4),
    Tiling(64, 64, 128, 4, 3, folds=True), Tiling(128, 128, 128, 8, 2, folds=True),
)  # fmt: skip
"""For 8 and 4 bits, likewise."""
_FOUR_BITS_GATED = Tiling(32, 8, 256, 2, 4)  # in the place of the first of them
ARRIVALS = 4096
"""Tiles that a split product has at most."""
_PROGRAMS = (256, 512)  # that a split product has at least, for fewer than _LONG inputs and for more
_LONG = 8192
_WIDE_PROGRAMS = 96  # of more rows, whose programs are larger
_MAX_CHUNKS = 4
_SMALL_BYTES = 8 << 20  # of a matrix of 8 bits that more than 128 rows multiply once it is bfloat16
FIXED = Tiling(32, 32, 128, 4, 4)
"""For any number of rows, if a row's bits may not depend on it."""
OWN = {
    "plain": (*PRODUCT, Tiling(64, 128, 128, 8, 3)),
    "few bits": (*FEW_BITS[:3], Tiling(32, 128, 128, 4, 3)),
}
OWN_GATED = {
    "plain": (*GATED, Tiling(64, 128, 128, 8, 3)),
    "few bits": (*FEW_BITS_GATED[:3], Tiling(32, 128, 128, 8, 3)),
}
"""What may take the place of FIXED where `agree` has seen equal bits. All multiply 16 inputs at a time, in order."""


def tiling_for(matrix: Matrix, num_rows: int, *, is_gated: bool) -> Tiling | None:
    """The fastest for so many rows; None if cuBLAS is faster."""
    tilings: tuple[Tiling, ...] = FEW_BITS_GATED if is_gated else FEW_BITS
    most = MOST_ROWS
    if matrix.kind == "plain":
        tilings, most = GATED if is_gated else PRODUCT, NARROW_ROWS
    is_small = matrix.num_outputs * matrix.size < _SMALL_BYTES and not is_gated
    if num_rows > most or (is_small and num_rows > 128):
        return None
    tiling = next((one for one in tilings if num_rows <= one.rows), tilings[-1])
    if matrix.kind == "int4" and tiling == FEW_BITS_GATED[0] and is_gated:
        tiling = _FOUR_BITS_GATED
    return tiling if is_gated or matrix.kind == "plain" else _spread(tiling, matrix, num_rows)


def _spread(tiling: Tiling, matrix: Matrix, num_rows: int) -> Tiling:
    """In so many parts that the device is full."""
    tiles, chunks = num_tiles(tiling, matrix, num_rows), 1
    wanted = _WIDE_PROGRAMS if num_rows > NARROW_ROWS else _PROGRAMS[matrix.size >= _LONG]
    while chunks < _MAX_CHUNKS and tiles * chunks < wanted and 4 * chunks * SPAN <= matrix.size:
        chunks *= 2
    return replace(tiling, chunks=chunks, is_split=True) if chunks > 1 else tiling


def own_tiling(matrix: Matrix, num_rows: int, alike: Collection[MatrixKind], *, is_gated: bool) -> Tiling:
    """One of those that give a row the same bits for any number of rows: FIXED, or for the kinds for which all are
    `alike`, the fastest. In how many parts the inputs are is the matrix's alone."""
    tiling, chunks = FIXED, 1 if is_gated else _own_chunks(matrix)
    if matrix.kind in alike:
        some = (OWN_GATED if is_gated else OWN)["plain" if matrix.kind == "plain" else "few bits"]
        tiling = next((one for one in some if num_rows <= one.rows), some[-1])
    is_split = tiling != FIXED and chunks > 1 and num_rows <= MOST_ROWS
    return replace(tiling, chunks=chunks, is_split=is_split and num_tiles(tiling, matrix, num_rows) <= ARRIVALS)


def own_sizes(kind: MatrixKind) -> list[int]:
    """Numbers of rows by which all ways of `own_tiling` are taken, the largest with more than one tile of rows."""
    name = "plain" if kind == "plain" else "few bits"
    sizes = sorted({one.rows for some in (OWN[name], OWN_GATED[name]) for one in some})
    return [*(size - 3 for size in sizes), sizes[-1] + 4]


def _own_chunks(matrix: Matrix) -> int:
    tiles, chunks = -(-matrix.num_outputs // FEW_BITS[1].outputs), 1
    if matrix.kind == "plain":
        return 1
    while chunks < _MAX_CHUNKS and tiles * chunks < _PROGRAMS[0] and 4 * chunks * SPAN <= matrix.size:
        chunks *= 2
    return chunks


def num_tiles(tiling: Tiling, matrix: Matrix, num_rows: int) -> int:
    """Of outputs and rows."""
    return -(-matrix.num_outputs // tiling.outputs) * -(-num_rows // tiling.rows)
