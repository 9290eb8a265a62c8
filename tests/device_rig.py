"""A device runner on the CPU, in float32 and with torch's operations, to be held against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loopwright.engine.cuda.choice import DeviceChoice
from loopwright.engine.cuda.executor import DeviceExecutor
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from runner_rig import Rig

if TYPE_CHECKING:
    from loopwright.engine.loaded_model import LoadedModel

CPU = torch.device("cpu")
CHOICE = DeviceChoice(CPU, torch.float32, "sdpa", False, "the CPU, as a device")
MAX_ROWS = 8


def device_rig(model: LoadedModel, num_blocks: int = 128, num_slots: int = 64, seed: int = 0) -> Rig:
    return Rig(model, num_blocks, num_slots, seed, make_runner=make_runner)


def make_runner(model: LoadedModel, num_blocks: int, num_slots: int) -> DeviceRunner:
    parts = DeviceParts.make(model, num_blocks=num_blocks, device=CPU, dtype=torch.float32)
    return DeviceRunner(model, parts, num_slots=num_slots, max_rows=MAX_ROWS)


def device_executor(
    model: LoadedModel, num_blocks: int = 128, num_slots: int = 64, choice: DeviceChoice = CHOICE
) -> DeviceExecutor:
    return DeviceExecutor(
        model, choice, num_blocks=num_blocks, num_slots=num_slots, max_rows=MAX_ROWS, max_tokens=64, report=_no_report
    )


def _no_report(stage: str, fraction: float | None) -> None:
    """Nobody looks."""
