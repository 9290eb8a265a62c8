"""Control over a simulated device: the same layer as in a server, on time that a table of costs makes up.

Used by benchmarks and tests that study scheduling with more programs than this machine could serve.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loopwright.control.config import ControlConfig
from loopwright.control.controller import Controller
from loopwright.core.clock import Clock
from loopwright.core.executor import EngineShape
from loopwright.core.instrument import Meter
from loopwright.core.model_info import ModelInfo
from loopwright.core.step_costs import StepCosts
from loopwright.engine.simulated import SimulatedExecutor

SHAPE = EngineShape(
    vocab_size=32_000, max_context=8192, block_size=16, num_blocks=1 << 16, num_slots=1 << 16, steps_ahead="possible"
)
_INFO = ModelInfo(
    name="simulated", architecture="none", traits=("allocate", "forward", "input_text", "output_text"),
    vocab_size=SHAPE.vocab_size, max_context=SHAPE.max_context, page_size=SHAPE.block_size, num_pages=SHAPE.num_blocks,
    eos_ids=(), bos_id=None, has_chat_template=False, quantization="none", weights_sha256="",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Simulation:
    """Control, and the device below it."""

    control: Controller
    device: SimulatedExecutor


@asynccontextmanager
async def open_simulation(
    costs: StepCosts,
    clock: Clock,
    config: ControlConfig | None = None,
    shape: EngineShape = SHAPE,
    meter: Meter | None = None,
) -> AsyncIterator[Simulation]:
    """Serves until the end, on the running loop, whose clock is `clock`. Checks at the end that nothing leaked."""
    loop = asyncio.get_running_loop()

    def call_later(delay_s: float, callback: Callable[[], None]) -> object:
        return loop.call_later(delay_s, callback)

    device = SimulatedExecutor(shape, costs, call_later)
    controller = Controller(device, (), _INFO, clock, config or ControlConfig(), meter=meter)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(controller.serve())
        try:
            yield Simulation(controller, device)
        finally:
            serving.cancel()
    controller.check_integrity()
