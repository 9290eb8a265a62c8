"""Ranks as threads of one process: their parts of a model from a file, real collectives, steps as encoded messages.

Only what carries the messages is a queue here and a pipe elsewhere: tests of what ranks compute need no process each.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import torch

from loopwright.engine.cuda.following import FollowingDeviceRunner
from loopwright.engine.cuda.matrices import kinds
from loopwright.engine.cuda.parts import DeviceParts
from loopwright.engine.cuda.runner import DeviceRunner
from loopwright.engine.loader import load_model
from loopwright.engine.model_runner import FollowingRunner, ModelRunner
from loopwright.engine.ranks.collectives import Collectives
from loopwright.engine.ranks.messages import StepReader, StepWriter, Stop, decode, encode
from loopwright.engine.shards import Shard
from runner_rig import Rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loopwright.core.batch import Batch
    from loopwright.core.model_info import WeightDtype
    from loopwright.engine.loaded_model import LoadedModel

CPU = torch.device("cpu")
TIMEOUT_S = 30.0


@contextmanager
def rank_threads(
    path: Path, meeting: Path, num_ranks: int, kind: str = "reference", dtype: WeightDtype = "auto"
) -> Iterator[Rig]:
    """The first rank's rig over the model at `path`; `kind` is reference or device, which keeps its matrices as `dtype`
    says. What one of the other ranks raises fails the block."""
    inboxes = [SimpleQueue[bytes]() for _ in range(1, num_ranks)]
    writer = StepWriter()
    faults: list[Exception] = []

    def share(batch: Batch) -> None:
        payload = encode(writer.step(batch))
        for inbox in inboxes:
            inbox.put(payload)

    def follow(rank: int, inbox: SimpleQueue[bytes]) -> None:
        try:
            _follow(_maker(kind, dtype=dtype)(_ranked(path, meeting, rank, num_ranks), 128, 64), inbox)
        except Exception as error:  # noqa: BLE001 (the edge of the thread)
            faults.append(error)

    threads = [Thread(target=follow, args=(rank, inbox), daemon=True) for rank, inbox in enumerate(inboxes, start=1)]
    for thread in threads:
        thread.start()
    model = _ranked(path, meeting, 0, num_ranks)
    try:
        yield Rig(model, make_runner=_maker(kind, share=share, dtype=dtype))
    finally:
        for inbox in inboxes:
            inbox.put(encode(Stop()))
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert faults == []


def _ranked(path: Path, meeting: Path, rank: int, num_ranks: int) -> LoadedModel:
    model = load_model(path, shard=Shard(rank, num_ranks))
    return replace(model, ranks=Collectives(meeting, rank, num_ranks, CPU, TIMEOUT_S))


def _follow(runner: ModelRunner, inbox: SimpleQueue[bytes]) -> None:
    """As the process of a rank does."""
    reader = StepReader()
    with torch.inference_mode():
        while not isinstance(step := decode(inbox.get()), Stop):
            if isinstance(runner, DeviceRunner):
                runner.launch(reader.batch(step))  # nobody reads what came of it
            else:
                runner.run(reader.batch(step))


def _maker(
    kind: str, share: Callable[[Batch], None] | None = None, dtype: WeightDtype = "auto"
) -> Callable[[LoadedModel, int, int], ModelRunner]:
    def make(model: LoadedModel, num_blocks: int, num_slots: int) -> ModelRunner:
        if kind == "device":
            parts = DeviceParts.make(
                model, num_blocks=num_blocks, device=CPU, dtype=torch.float32, kind_of=kinds(dtype)
            )
            runner = FollowingDeviceRunner if share is None else DeviceRunner
            return runner(model, parts, num_slots=num_slots, max_rows=8, share=share)
        if share is None:
            return FollowingRunner(model, num_blocks=num_blocks, num_slots=num_slots)
        return ModelRunner(model, num_blocks=num_blocks, num_slots=num_slots, share=share)

    return make
