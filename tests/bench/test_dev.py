"""`bench dev` saves a file beside the real command, and sees what it prints."""

import asyncio

import pytest

from loopwright.bench import dev
from loopwright.bench.suite import Options
from loopwright.core.errors import LoopwrightError


@pytest.mark.model
def test_each_save_is_followed_to_its_first_line_and_its_first_token() -> None:
    rows = asyncio.run(
        dev.measure(Options(num_rounds=2), lambda *_, **__: pytest.fail("it has a system of its own"))
    ).rows
    assert [(row.case, row.runs) for row in rows] == [("reload=log", 2), ("reload=token", 2)]
    assert 0 < rows[0].value < rows[1].value


def test_a_command_that_fails_is_quoted() -> None:
    with pytest.raises(LoopwrightError, match="no-such-model"):
        asyncio.run(dev.measure(Options(model="./no-such-model.gguf"), lambda *_, **__: pytest.fail("unused")))
