"""Owns what a step leaves to the next one: what its rows sampled, for rows that name them as their source.

Never runs a row. Used by executors that run row by row; one with a device keeps the same there.
"""

from collections.abc import Sequence

import msgspec

from loopwright.core.batch import Batch, ForwardRow, RowResult
from loopwright.core.samplers import SamplerRun

_NO_TOKEN = -1  # no vocabulary has it, so the row is refused


class Carried:
    """Of one step at a time. A step that raises before `keep` leaves nothing."""

    def __init__(self) -> None:
        self._results: Sequence[RowResult] = ()

    def rows(self, batch: Batch) -> list[ForwardRow]:
        """The batch's `all_rows` with the tokens that the step before sampled. One whose source failed has none, and
        `check_row` refuses it."""
        results, self._results = self._results, ()
        return [row if row.source < 0 else fed(row, _of(row.source, results)) for row in batch.all_rows]

    def keep(self, results: Sequence[RowResult]) -> None:
        """What came of `all_rows`."""
        self._results = results


def fed(row: ForwardRow, result: RowResult) -> ForwardRow:
    """The row with what came of its source, and what control made of it."""
    row = settled(row)
    token = result.token_id
    if result.error is not None or token is None:
        return msgspec.structs.replace(row, token_ids=(_NO_TOKEN,))
    generated, sampler = row.generated, row.sampler
    if row.sampling is not None and row.sampling.has_penalties:
        generated = (*generated, token)
    if sampler is not None:
        sampler = SamplerRun(sampler.graph, sampler.initial, result.sampler_state)
    return msgspec.structs.replace(row, token_ids=(token,), generated=generated, sampler=sampler)


def settled(row: ForwardRow) -> ForwardRow:
    """The row with the bits that come late, for which this waits."""
    if row.late_bits is None:
        return row
    return msgspec.structs.replace(row, allowed_bits=row.late_bits.wait(), late_bits=None)


def _of(source: int, results: Sequence[RowResult]) -> RowResult:
    return results[source] if source < len(results) else RowResult()
