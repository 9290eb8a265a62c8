"""The process of a rank other than the first: `python -m loopwright.engine.rank_member SETTINGS`. A group starts it.

It loads its part of the model, meets the others, and does each step that it is sent, without a word. It ends when it is
told to, when its input closes, which is how it notices that the first rank is gone, and with its first fault.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec
import torch

from loopwright.core.batch import Batch
from loopwright.core.errors import InternalError, LoopwrightError
from loopwright.core.no_collecting import collect_seldom
from loopwright.engine.cuda.choice import DeviceChoice
from loopwright.engine.cuda.executor import device_runner, room_for
from loopwright.engine.loaded_model import LoadedModel
from loopwright.engine.model_runner import FollowingRunner
from loopwright.engine.parts import choose_part, load_part
from loopwright.engine.ranks.collectives import Apart, Collectives
from loopwright.engine.ranks.messages import (
    Begin,
    Failed,
    FromRank,
    Loaded,
    RankSettings,
    Room,
    Serving,
    Step,
    StepReader,
    ToRank,
    decode,
    encode_from_rank,
)

LAST_S = 5.0
Do = Callable[[Batch], object]


def main() -> None:
    """Serves until told to stop."""
    collect_seldom()
    settings = msgspec.json.decode(sys.argv[1], type=RankSettings)
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no line of ours
    inbox: SimpleQueue[ToRank] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, inbox), name="loopwright-receive", daemon=True).start()

    def say(message: FromRank) -> None:
        lines.write(encode_from_rank(message))

    try:
        do = _begin(settings, inbox, say)
    except LoopwrightError as error:
        say(Failed(error.info()))
        os._exit(1)
    except Exception as error:  # noqa: BLE001 (the edge of the process)
        say(Failed(InternalError(f"rank {settings.rank} failed: {type(error).__name__}: {error}").info()))
        os._exit(1)
    say(Serving())
    reader = StepReader()
    with torch.inference_mode():
        while isinstance(step := inbox.get(), Step):
            try:
                do(reader.batch(step))
            except Apart:
                time.sleep(LAST_S)  # it is for the first rank to say who is gone, and it ends the others
                os._exit(1)
            except Exception:  # noqa: BLE001 (the edge of the process)
                traceback.print_exc()
                os._exit(1)
    os._exit(0)  # a device's threads need not be waited for


def _receive(frames: BinaryIO, inbox: "SimpleQueue[ToRank]") -> None:
    """Reads on while a step runs. Ends the process where it is when nobody is left to send anything."""
    try:
        while len(head := frames.read(4)) == 4:
            inbox.put(decode(frames.read(int.from_bytes(head, "little"))))
    finally:  # also where a message ends in its midst
        os._exit(0)


def _begin(settings: RankSettings, inbox: "SimpleQueue[ToRank]", say: Callable[[FromRank], None]) -> Do:
    """Loads, meets, and returns what does a batch."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    if settings.device != "cpu" and settings.rank < torch.cuda.device_count():
        torch.cuda.set_device(settings.rank)
    model = load_part(settings)
    choice = choose_part(settings, model.config)
    say(Loaded(_room(settings, model, choice)))
    begin = inbox.get()
    if not isinstance(begin, Begin):
        os._exit(0)
    device = torch.device("cpu") if choice is None else choice.device
    ranks = Collectives(Path(settings.meeting), settings.rank, settings.num_ranks, device, settings.timeout_s)
    model = replace(model, ranks=ranks)
    if choice is None:
        return FollowingRunner(model, num_blocks=begin.num_blocks, num_slots=settings.num_slots).run
    runner = device_runner(model, choice, begin.num_blocks, settings.num_slots, settings.max_rows)
    with torch.inference_mode():
        runner.capture(_no_report)
    return runner.launch


def _room(settings: RankSettings, model: LoadedModel, choice: DeviceChoice | None) -> Room:
    """On a CPU memory is not counted: what the first rank says."""
    if choice is None:
        return Room(sys.maxsize, sys.maxsize)
    return room_for(model, choice, settings.num_blocks, settings.max_rows, settings.max_tokens)


def _no_report(stage: str, fraction: float | None) -> None:
    """The first rank tells it."""


if __name__ == "__main__":
    main()
