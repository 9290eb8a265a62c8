"""A few random requests are answered at once, in too few pages and beside clients that go, as each is alone."""

from random import Random

import pytest
from apart import both, round_of

from loopwright.core.errors import Unavailable
from system_rig import in_loop


@pytest.mark.model
def test_what_is_asked_at_once_is_answered_as_alone() -> None:
    async def scenario() -> None:
        async with both() as (alone, at_once):
            assert await round_of(Random(3), alone, at_once, 8) == 0
            assert (await at_once.system.controller.stats()).num_steps > 0

    try:
        in_loop(scenario)
    except Unavailable as error:
        pytest.skip(f"no native kernels here: {error}")
