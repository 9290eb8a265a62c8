"""Batches that are launched by who submits them, if nobody waits: in order, on which thread, and after the end."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from loopwright.core.batch import Batch, HeadRow, StepResult
from loopwright.core.errors import InternalError, Unavailable
from loopwright.core.ids import SlotId
from loopwright.engine.cuda.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT, LONG, WRONG = (Batch(heads=[HeadRow(SlotId(number))] * number) for number in (1, 2, 3))


class Device:
    """Launches at once what is SHORT, and what is WRONG not at all."""

    def __init__(self) -> None:
        self.launched: list[tuple[Batch, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.scopes = 0
        self.pipeline = Pipeline("device", self.launch, self.scope, self.at_once)

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.scopes += 1
        yield

    def launch(self, batch: Batch) -> Device:
        assert self.gate.wait(10)
        self.launched.append((batch, threading.current_thread().name))
        return self

    def at_once(self, batch: Batch) -> Device | None:
        if batch is WRONG:
            raise InternalError("wrong")
        return self.launch(batch) if batch is SHORT else None

    def result(self) -> StepResult:
        return StepResult()


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    yield device
    device.gate.set()
    device.pipeline.close()


def test_what_is_short_is_launched_by_who_submits_it_and_the_rest_by_the_thread(device: Device) -> None:
    mine = threading.current_thread().name
    for batch in (SHORT, LONG, SHORT):
        assert device.pipeline.submit(batch).result(10) == StepResult()
    assert device.launched[:2] == [(SHORT, mine), (LONG, "device-launch")]
    device.pipeline.close()
    assert device.scopes == 4  # the thread's own, and one for each that was tried


def test_nothing_overtakes_a_batch_that_waits(device: Device) -> None:
    device.gate.clear()
    futures = [device.pipeline.submit(LONG), device.pipeline.submit(SHORT)]
    device.gate.set()
    assert [one.result(10) for one in futures] == [StepResult()] * 2
    assert device.launched == [(LONG, "device-launch"), (SHORT, "device-launch")]


def test_what_a_launch_raises_is_the_futures_and_the_next_one_runs(device: Device) -> None:
    with pytest.raises(InternalError, match="wrong"):
        device.pipeline.submit(WRONG).result(10)
    assert device.pipeline.submit(SHORT).result(10) == StepResult()


def test_after_the_end_nothing_is_launched(device: Device) -> None:
    device.pipeline.close()
    with pytest.raises(Unavailable):
        device.pipeline.submit(SHORT)
    assert device.launched == []
