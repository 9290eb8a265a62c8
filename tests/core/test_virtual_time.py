"""Time that passes only when nobody has anything to do."""

import asyncio
import time

from loopwright.core.batch import Batch, EmbedRow, ForwardRow
from loopwright.core.clock import Clock
from loopwright.core.step_costs import StepCosts
from loopwright.core.virtual_time import run_in_virtual_time

COSTS = StepCosts(row_s=((1, 1.0), (3, 2.0), (5, 6.0)), token_s=0.5, light_s=0.25)


def test_a_day_of_timers_passes_in_order_and_in_no_time() -> None:
    async def main(clock: Clock) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def wake(name: str, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            seen.append((name, clock.now_s()))

        await asyncio.gather(wake("evening", 64_800.0), wake("noon", 43_200.0), wake("night", 86_400.0))
        return seen

    started_s = time.monotonic()
    seen = run_in_virtual_time(main)
    assert [name for name, _ in seen] == ["noon", "evening", "night"]
    assert [round(at_s) for _, at_s in seen] == [43_200, 64_800, 86_400]
    assert time.monotonic() - started_s < 3600


def test_no_time_passes_while_somebody_has_something_to_do() -> None:
    async def main(clock: Clock) -> float:
        timer = asyncio.create_task(asyncio.sleep(1.0))
        for _ in range(1000):
            await asyncio.sleep(0)
        before_s = clock.now_s()
        await timer
        return before_s

    assert run_in_virtual_time(main) == 0.0


def test_a_timeout_ends_what_would_never_end() -> None:
    async def main(clock: Clock) -> float:
        try:
            async with asyncio.timeout(30.0):
                await asyncio.Event().wait()
        except TimeoutError:
            return clock.now_s()
        raise AssertionError

    assert round(run_in_virtual_time(main), 6) == 30.0


def test_another_thread_is_waited_for_in_real_time() -> None:
    async def main(clock: Clock) -> tuple[int, float]:
        return await asyncio.to_thread(lambda: 7), clock.now_s()

    assert run_in_virtual_time(main) == (7, 0.0)


def test_costs_lie_on_the_line_between_two_points_and_beyond_the_last_two() -> None:
    assert [COSTS.rows_s(num) for num in (1, 2, 3, 4, 5, 6)] == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]
    assert StepCosts(((1, 3.0),)).rows_s(50) == 3.0


def test_a_step_costs_its_rows_and_what_its_prompts_have_beyond_one_token() -> None:
    decoding = ForwardRow([0], 3, (3,), (7,))
    prompt = ForwardRow([1], 0, (0, 1, 2, 3), (7, 7, 7, 7))
    assert COSTS.step_s(Batch(rows=[decoding] * 2 + [prompt])) == 2.0 + 3 * 0.5
    assert COSTS.step_s(Batch(embeds=[EmbedRow((1,), (0,), ())])) == 0.25
