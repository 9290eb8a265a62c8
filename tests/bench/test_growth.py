"""`bench growth` over the byte model: every cell that fits has a step and a floor, and a picture shows them."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from loopwright.bench import growth
from loopwright.bench.suite import Options
from loopwright.core.errors import BadRequest
from system_rig import byte_system

if TYPE_CHECKING:
    from loopwright.core.batch import Batch


def test_each_cell_has_its_step_and_its_floor_and_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "BATCH_SIZES", (1, 4))
    monkeypatch.setattr(growth, "CONTEXTS", (64, 96))
    monkeypatch.setattr(growth, "MAX_TOKENS_AT_ONCE", 300)
    monkeypatch.setattr(growth, "read_bandwidth", lambda clock, num_threads: 1e9)

    batches: list[Batch] = []

    @asynccontextmanager
    async def open_system(model: str, *, prefix_cache: bool = False, num_blocks: int | None = None):
        async with byte_system(num_blocks=128) as system:
            engine = {"num_threads": 1, "step_weight_bytes": 3_000_000, "kv_token_bytes": 1000}
            yield SimpleNamespace(control=system.controller, **engine)
            batches.extend(system.executor.batches)

    plot = tmp_path / "growth.svg"
    measured = asyncio.run(growth.measure(Options(num_rounds=1, plot=plot), open_system))
    rows = {row.case: row.value for row in measured.rows}
    cells = [(1, 64), (4, 64), (1, 96)]
    assert list(rows) == [f"{floor}batch={b}/context={c}" for b, c in cells for floor in ("", "case=floor/")]
    assert all(value > 0 for value in rows.values())
    assert rows["case=floor/batch=4/context=64"] == pytest.approx(3 + 4 * 64 * 1e-3)
    assert "<svg" in plot.read_text()
    assert sum(batch.num_long_tokens for batch in batches) == 96  # one prompt
    tables = [set(ids[: 64 // 16]) for batch in batches if len(batch.decodes) == 4 for ids in batch.decodes.block_ids]
    assert all(len(set.union(*tables[at : at + 4])) == 16 for at in range(0, len(tables), 4))  # memory of their own
    written = {copy.target for batch in batches for copy in batch.copies}
    assert set.union(*tables) <= written


def test_a_picture_of_another_kind_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"growth\.txt"):
        growth.require_plots(Path("growth.txt"))
