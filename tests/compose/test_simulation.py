"""The real control layer over a device that only takes virtual time."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from loopwright.bench.sessions import QUEUE, Caller, by_segment, by_streaming, by_token
from loopwright.compose.simulated import SHAPE, open_simulation
from loopwright.control.config import ControlConfig
from loopwright.core.batch import Batch, ForwardRow
from loopwright.core.calls import (
    AllocateEmbeds,
    CreateQueue,
    DistributionRequest,
    EmbedText,
    ForwardText,
    NextDistribution,
    Sampling,
)
from loopwright.core.clock import Clock
from loopwright.core.ids import EmbedName, PageName
from loopwright.core.results import Forwarded
from loopwright.core.step_costs import StepCosts
from loopwright.core.virtual_time import run_in_virtual_time
from loopwright.engine.simulated import SimulatedExecutor

ONE_SECOND = StepCosts(((1, 1.0),), light_s=0.5)


def test_segments_that_start_together_take_a_step_for_each_token() -> None:
    async def main(clock: Clock) -> tuple[float, int, int, float]:
        async with open_simulation(ONE_SECOND, clock) as simulation:
            with Caller(simulation.control, "a") as one, Caller(simulation.control, "b") as other:
                await asyncio.gather(by_segment(one, 5), by_segment(other, 5))
            device, stats = simulation.device, await simulation.control.stats()
            assert stats.busy_s == pytest.approx(device.busy_s)
            return clock.now_s(), device.num_steps, device.num_rows, device.busy_s

    assert run_in_virtual_time(main) == pytest.approx((5.0, 5, 10, 5.0))


def test_two_thousand_programs_that_look_at_every_token_share_the_device() -> None:
    async def main(clock: Clock) -> tuple[float, int]:
        config = ControlConfig(max_batch_rows=2000, max_batch_tokens=4000)
        async with open_simulation(ONE_SECOND, clock, config) as simulation:

            async def program(number: int) -> None:
                with Caller(simulation.control, f"program {number}") as caller:
                    await by_token(caller, 3)

            await asyncio.gather(*(program(number) for number in range(2000)))
            return clock.now_s(), simulation.device.num_rows

    assert run_in_virtual_time(main) == pytest.approx((3.0, 6000))


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        ("adaptive", 3 + 3),  # the first alone, the others together, in turns: the engine never waits for a program
        ("eager", 3 * 3),
        ("k-only", 3 + 3),  # two together, and the third when it has waited long enough
        ("t-only", 3 * (0.25 + 1)),  # all together, and an idle engine before each step
    ],
)
def test_a_policy_decides_how_long_three_programs_of_three_tokens_take(policy: str, seconds: float) -> None:
    async def main(clock: Clock) -> float:
        config = ControlConfig(policy=policy, policy_calls=2, policy_wait_s=0.25, policy_max_wait_s=0.25)  # type: ignore[arg-type]
        async with open_simulation(ONE_SECOND, clock, config) as simulation:

            async def program(number: int) -> None:
                await asyncio.sleep(0.01 * number)
                with Caller(simulation.control, f"program {number}") as caller:
                    await by_token(caller, 3)

            await asyncio.gather(*(program(number) for number in range(3)))
            return clock.now_s()

    assert run_in_virtual_time(main) == pytest.approx(seconds, abs=0.05)


@dataclass(frozen=True)
class Launched(StepCosts):
    """A device that gets a step with prompts launch by launch: `least_s`, however few tokens there are."""

    least_s: float = 0.0

    def step_s(self, batch: Batch) -> float:
        return max(self.least_s if batch.num_long_tokens else 0.0, StepCosts.step_s(self, batch))


@pytest.mark.parametrize(
    ("limit", "longest_s", "least_s"), [("auto", 0.02, 0.0), ("auto", 0.0214, 0.019), (0.0, 0.8, 0.0), (0.1, 0.1, 0.0)]
)
def test_beside_a_stream_prompts_are_cut_so_that_its_next_token_comes_in_time(
    limit: float, longest_s: float, least_s: float
) -> None:
    """An engine with steps of 6 ms and 24 µs for a token of a prompt: 64 prompts of 512 tokens come while one stream
    runs. Before it, they would have come together: an engine that decodes for nobody takes them at once."""
    shape = replace(SHAPE, steps_ahead="usual", max_step_tokens=32768)
    costs = Launched(((1, 0.006), (256, 0.0061)), token_s=24e-6, least_s=least_s)

    async def main(clock: Clock) -> tuple[list[float], list[float]]:
        config = ControlConfig(prompt_step_s=limit)  # type: ignore[arg-type]
        async with open_simulation(costs, clock, config, shape) as simulation:
            first_s: list[float] = []
            sizes: list[int] = []
            submit = simulation.device.submit
            simulation.device.submit = lambda batch: (sizes.append(batch.num_tokens), submit(batch))[1]  # type: ignore[method-assign]

            async def prompt(number: int) -> None:
                with Caller(simulation.control, f"prompt {number}") as caller:
                    await by_segment(caller, 1, prompt_len=512, first_token=2 + number)
                    first_s.append(clock.now_s())

            await asyncio.gather(*(prompt(100 + number) for number in range(64)))  # nobody decodes
            assert max(sizes) == 64 * 512
            for number in range(20):  # what they told is long ago: now there are small steps, which launches take
                with Caller(simulation.control, "small") as caller:
                    await by_segment(caller, 1, prompt_len=200, first_token=500 + number)
            with Caller(simulation.control, "stream") as caller:
                stream = asyncio.create_task(by_streaming(caller, 400))
                await asyncio.sleep(0.1)
                began_s, num_before = clock.now_s(), len(sizes)
                await asyncio.gather(*(prompt(number) for number in range(64)))
                beside_s = [costs.row_s[0][1] + costs.token_s * num for num in sizes[num_before:]]
                await stream
            return beside_s, [one - began_s for one in first_s[64:]]

    beside_s, firsts_s = run_in_virtual_time(main)
    assert max(beside_s) <= 1.01 * longest_s
    assert max(beside_s) > 0.8 * longest_s
    assert max(firsts_s) < 64 * 512 * 24e-6 * 1.6 + 0.1  # and who came is served nearly as soon


def test_calls_without_a_pass_of_the_model_cost_what_the_table_says() -> None:
    async def main(clock: Clock) -> float:
        async with open_simulation(ONE_SECOND, clock) as simulation:
            with Caller(simulation.control, "a") as caller:
                await caller.call(CreateQueue(queue=QUEUE))
                await caller.call(AllocateEmbeds(queue=QUEUE, embeds=(EmbedName(1),)))
                embed = EmbedText(queue=QUEUE, tokens=(3,), positions=(0,), embeds=(EmbedName(1),))
                await caller.call(embed)
                await caller.call(NextDistribution(queue=QUEUE, embed=EmbedName(1)))
            return clock.now_s()

    assert run_in_virtual_time(main) == pytest.approx(1.0)


def test_what_the_device_samples_is_allowed_and_drafts_are_right() -> None:
    async def main(clock: Clock) -> tuple[Forwarded, Forwarded]:
        async with open_simulation(ONE_SECOND, clock) as simulation:
            with Caller(simulation.control, "a") as caller:
                await caller.call(CreateQueue(queue=QUEUE))
                drafted = await caller.call(
                    ForwardText(
                        queue=QUEUE, pages=(), grow_from=PageName(0), kv_len=0, tokens=(3, 4, 5), positions=(0, 1, 2),
                        sampling=Sampling(), num_drafts=2,
                    )
                )  # fmt: skip
                masked = await caller.call(
                    ForwardText(
                        queue=QUEUE, pages=(), grow_from=PageName(9), kv_len=0, tokens=(3,), positions=(0,),
                        sampling=Sampling(allowed=(30, 20)), distributions=(DistributionRequest(k=1, allowed=(9, 8)),),
                    )
                )  # fmt: skip
        assert isinstance(drafted, Forwarded)
        assert isinstance(masked, Forwarded)
        return drafted, masked

    drafted, masked = run_in_virtual_time(main)
    assert (drafted.tokens[:2], drafted.kv_len) == ((4, 5), 3)
    assert masked.token == 20
    assert int.from_bytes(masked.distributions[0].ids, "little") == 8


def test_batches_run_one_after_the_other_in_the_order_they_were_submitted() -> None:
    waiting = []
    device = SimulatedExecutor(SHAPE, ONE_SECOND, lambda delay_s, callback: waiting.append((delay_s, callback)))
    row = ForwardRow([0], 0, (0,), (7,))
    first, second = device.submit(Batch(rows=[row])), device.submit(Batch())
    assert (len(waiting), first.done(), second.done()) == (1, False, False)
    waiting[0][1]()
    assert (first.done(), second.done()) == (True, False)
    waiting[1][1]()
    assert second.done()
    assert [delay_s for delay_s, _ in waiting] == [1.0, 0.5]
