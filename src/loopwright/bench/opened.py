"""Opens what a suite measures: the real engine's system, or one on a simulated device if the options name that. Never
measures. Used by suites that can do with either.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loopwright.bench.devices import DEVICES
from loopwright.bench.suite import OpenSystem, Options, StepsAheadOption, System
from loopwright.compose.config import Config, EngineConfig
from loopwright.compose.device_system import open_device_system
from loopwright.compose.system import open_system, prepare
from loopwright.control.config import ControlConfig
from loopwright.core.errors import BadRequest
from loopwright.core.runs import Runs
from loopwright.weights import store

NUM_BLOCKS = 1 << 15  # of a simulated device, which has no memory to run out of


@asynccontextmanager
async def opened(
    options: Options, open_engine: OpenSystem, *, steps_ahead: StepsAheadOption = "auto", prefix_cache: bool = False
) -> AsyncIterator[System]:
    """The system of the options until the end."""
    if options.device is None:
        async with open_engine(options.model, prefix_cache=prefix_cache, steps_ahead=steps_ahead) as system:
            yield system
    else:
        control = ControlConfig(prefix_cache=prefix_cache, steps_ahead=steps_ahead)
        config = Config(model=options.model, engine=EngineConfig(num_blocks=NUM_BLOCKS), control=control)
        async with open_device_system(config, DEVICES[options.device]) as device_system:
            yield device_system


@dataclass(frozen=True, slots=True)
class Workers:
    """A system of several processes, as far as a suite sees it."""

    runs: Runs

    @property
    def control(self) -> Runs:
        """For what it counts."""
        return self.runs


@asynccontextmanager
async def opened_workers(options: Options, *, prefix_cache: bool = False) -> AsyncIterator[Workers]:
    """The model of the options in a process of its own, and programs in `num_workers` others. Raises BadRequest for a
    simulated device."""
    if options.device:
        raise BadRequest("a simulated device is in this process", hint="leave out --workers", field="workers")
    control = ControlConfig(prefix_cache=prefix_cache)
    config = Config(model=options.model, processes=1 + options.num_workers, control=control)
    prepared = await asyncio.to_thread(prepare, config, store.no_progress)
    async with open_system(config, prepared) as system:
        yield Workers(system.runs)
