"""What `loopwright bench` measures is a system of the defaults, but for what a suite asks for."""

import pytest

from loopwright.compose.system import open_bench_system


@pytest.mark.model
@pytest.mark.parametrize("num_blocks", [None, 48])
async def test_a_suite_gets_the_blocks_that_it_asks_for(num_blocks: int | None) -> None:
    async with open_bench_system("default", num_blocks=num_blocks, dtype="float32") as system:
        assert system.control.models()[0].num_pages == (num_blocks or 2048)
        assert system.dtype == "float32"
        assert system.kv_token_bytes == 2 * 30 * 3 * 64 * 4
