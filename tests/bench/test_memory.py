"""`bench memory`: a real server is asked, and what Linux says of it is summed up by part."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_rig import write_byte_gguf
from loopwright.bench import memory
from loopwright.bench.suite import Options
from loopwright.core.errors import InternalError

SMAPS = """\
7f00-7f10 rw-p 00000000 00:00 0
Rss:                  40 kB
Pss:                  40 kB
7f20-7f30 rw-p 00013000 fe:00 9    /cache/runner-1.cwasm
Rss:                  30 kB
Pss:                  10 kB
7f30-7f40 r-xp 00013000 fe:00 9    /usr/lib/a b.so
Rss:                   7 kB
Pss:                   5 kB
5500-5600 rw-p 00000000 00:00 0    [heap]
Rss:                   2 kB
Pss:                   2 kB
"""

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")


@asynccontextmanager
async def sizes(*_: Any, **__: Any) -> AsyncIterator[Any]:
    yield SimpleNamespace(step_weight_bytes=5_000_000, kv_token_bytes=1000)


def test_mappings_are_summed_by_what_they_map() -> None:
    parts, proportional = memory.sum_up(SMAPS)
    assert parts == {"own": 42 << 10, "runner": 30 << 10, "libraries": 7 << 10}
    assert proportional == 57 << 10


@needs_linux
@pytest.mark.wasm
def test_a_server_is_measured_ready_and_after_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(memory, "NUM_STREAMS", 3)
    monkeypatch.setattr(memory, "NUM_TOKENS", 5)
    model = str(write_byte_gguf(tmp_path / "byte.gguf"))
    found = asyncio.run(memory.measure(Options(model=model, num_rounds=1), sizes))
    values = {(row.case, row.metric): row.value for row in found.rows}
    for at in ("ready", "streams"):
        whole = values[f"at={at}/part=all", "resident_mb"]
        parts = [values[f"at={at}/part={part}", "resident_mb"] for part in ("own", "runner", "libraries")]
        assert sum(parts) == pytest.approx(whole)
        assert all(one > 0 for one in parts)
        assert values[f"at={at}/part=all", "proportional_mb"] <= whole <= values["at=peak/part=all", "resident_mb"]
    assert values["floor=weights", "resident_mb"] == 5
    assert values["floor=kv/streams=3/tokens=5", "resident_mb"] > 3 * 5 * 1e-3


@needs_linux
def test_a_server_that_does_not_start_is_quoted() -> None:
    with pytest.raises(InternalError, match="no-such-model"):
        asyncio.run(memory.measure(Options(model="./no-such-model.gguf"), sizes))
