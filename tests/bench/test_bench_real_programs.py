"""The suites whose programs have to do something, over the byte model and in the real Wasm sandbox."""

import pytest

from loopwright.bench.calls import measure_calls, measure_rounds
from loopwright.bench.launch import large, launch_s, measure_live, measure_neighbours
from loopwright.core.clock import SystemClock
from system_rig import byte_system

pytestmark = pytest.mark.wasm


class CountingClock:
    """CPU time that passes by one second each time it is asked for."""

    def __init__(self) -> None:
        self.num_asked = 0

    def __call__(self) -> float:
        self.num_asked += 1
        return float(self.num_asked)


async def test_every_program_of_the_suites_does_what_its_row_says():
    clock, cpu_s = SystemClock(), CountingClock()
    async with byte_system() as system:
        runs = system.launcher
        assert await launch_s(runs, clock, large(0)) > 0

        rows = await measure_live(runs, 40)
        assert [(row.case, row.metric) for row in rows] == [
            ("case=live/n=40", "num_live"),
            ("case=live/n=40", "private_mb_per_instance"),
            ("case=live/n=40", "page_table_mb_per_instance"),
        ]
        assert rows[0].value == 40
        assert 0.3 < rows[1].value < 5  # MB: an instance has written at least to the stack and the heap

        rows = await measure_neighbours(runs, clock, 1, num_launches=6, num_neighbours=2, quiet_s=0.0)
        assert all(row.value > 0 for row in rows)

        rows = await measure_rounds(runs, clock, 1, {(1, "runtime"): 3, (2, "control"): 4, (1, "task"): 3}, cpu_s)
        assert [(row.case, row.metric, row.value) for row in rows] == [
            ("live=1/round=runtime", "cpu_us", 0.0),  # each measurement takes one second of that clock
            ("live=2/round=control", "cpu_us", 0.0),
            ("live=1/round=task", "cpu_us", 0.0),
        ]
        assert cpu_s.num_asked == 2 * 6

        rows = await measure_calls(runs, 1, (1, 3), num_calls=5)
        assert [(row.case, row.paper) for row in rows] == [
            ("live=1/answered_by=runtime", "<30–40"),
            ("live=1/answered_by=control", "10–300"),
            ("live=3/answered_by=runtime", "<30–40"),
            ("live=3/answered_by=control", "10–300"),
        ]
        assert all(row.value > 0 for row in rows)
        assert sum(info.state == "running" for info in await runs.runs()) == 0
