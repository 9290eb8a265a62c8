"""Ranks as processes: the same answers from real weights, and what a process that dies, hangs or fails does to a group.

What the group watches for is shown with processes that only play a rank; that a rank does its work, with real ones.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from engine_rig import ANSWER, PROMPT

from loopwright.core.batch import Batch, DecodeRows, ForwardRow
from loopwright.core.calls import DistributionRequest, Sampling
from loopwright.core.errors import Unavailable
from loopwright.engine.executor import create_executor
from loopwright.engine.ranks import group as groups
from loopwright.engine.ranks.group import RankGroup
from loopwright.engine.ranks.messages import RankSettings, Room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwright.core.executor import Executor
    from system_rig import SmolLM2

SETTINGS = RankSettings(
    rank=0, num_ranks=3, path="nowhere", layers=(), shape="", meeting="", timeout_s=60.0, device="cpu",
    dtype="float32", attention="auto", num_threads=1, num_blocks=8, num_slots=1, max_rows=8, max_tokens=64,
)  # fmt: skip


def processes_of(parent: int | None = None) -> dict[int, int]:
    """The living ranks that this process, or another, has started: process ids by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            state, started_by = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended meanwhile
        if groups._MEMBER in words and state != "Z" and int(started_by) == (parent or os.getpid()):
            found[msgspec.json.decode(words[-2], type=RankSettings).rank] = int(folder.name)
    return found


@pytest.fixture
def executor(default_model_path: Path) -> Iterator[Executor]:
    """SmolLM2 on three ranks."""
    executor = create_executor(default_model_path, num_blocks=64, num_slots=16, num_threads=1, num_ranks=3)
    yield executor
    executor.close()
    assert processes_of() == {}


@pytest.mark.model
def test_smollm2_on_three_ranks_answers_as_on_one_until_one_dies(executor: Executor, smollm2: SmolLM2) -> None:
    distribution = DistributionRequest(k=1000)
    row = ForwardRow(
        [5, 9, 7, 8], 0, range(len(PROMPT)), PROMPT, sampling=Sampling(), sample_position=len(PROMPT),
        distributions=[distribution],
    )  # fmt: skip
    answers = [one.submit(Batch(rows=[row])).result().rows[0] for one in (executor, smollm2.executor)]
    mine, theirs = (dict(zip(*columns(one.distributions[0]), strict=True)) for one in answers)
    assert max(abs(mine[token] - theirs[token]) for token in list(theirs)[:900]) < 1e-4
    tokens, column = [answers[0].token_id], [5, 9, 7, 8]
    for number in range(len(ANSWER) - 1):
        decodes = DecodeRows(
            [column], [len(PROMPT)], [len(PROMPT)], [Sampling()], [()], [tokens[-1]], number, [1]
        )  # fmt: skip
        tokens += executor.submit(Batch(decodes=decodes)).result().decodes.token_ids
    assert tokens == ANSWER
    assert executor.exactness == "fast", "sums are added up in another order"
    os.kill(processes_of()[2], signal.SIGKILL)
    killed = "the process of rank 2 of 3 of the model was ended by SIGKILL"
    assert executor.lost.result(timeout=60).message == killed
    for _ in range(2):
        with pytest.raises(Unavailable, match=killed):
            executor.submit(Batch(rows=[row])).result()
    executor._group._members[0]._watch.join(60)
    assert processes_of() == {}, "the other goes with it"


def columns(distribution: object) -> tuple[list[int], list[float]]:
    return memoryview(distribution.ids).cast("i").tolist(), memoryview(distribution.logprobs).cast("f").tolist()


PLAYED = """
import json, os, signal, sys, time
settings = json.loads(sys.argv[1])
def say(line): print(json.dumps(line), flush=True)
def fail(message):
    say({"type": "Failed", "error": {"type": "Unavailable", "code": "internal", "message": message}})
    sys.exit(1)
def hear(): return sys.stdin.buffer.read(1)
"""


@contextmanager
def played(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, timeout_s: float = 60.0) -> Iterator[RankGroup]:
    """A group whose other ranks run a script."""
    (folder / "played_rank.py").write_text(PLAYED + script)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(groups, "_MEMBER", "played_rank")
    group = RankGroup(msgspec.structs.replace(SETTINGS, timeout_s=timeout_s))
    yield group
    group.close()
    group.close()
    assert processes_of() == {}


def test_a_rank_that_cannot_begin_says_why_and_ends_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
if settings["rank"] == 2: fail("the model does not fit the device: 9 GB of 8")
hear()  # the first to be asked is ended before it says anything
"""
    with played(tmp_path, monkeypatch, script) as group, pytest.raises(Unavailable, match="fit the device: 9 GB of 8"):
        group.meet(Room(100, 100))


def test_a_rank_that_dies_while_it_loads_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'hear() if settings["rank"] == 1 else os.kill(os.getpid(), signal.SIGABRT)'
    with played(tmp_path, monkeypatch, script) as group, pytest.raises(Unavailable, match=r"rank 2 of 3 .* SIGABRT"):
        group.meet(Room(100, 100))


def test_a_rank_that_dies_before_it_meets_the_others_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
say({"type": "Loaded", "room": {"num_blocks": 5, "step_tokens": 7}})
hear()
if settings["rank"] == 1: os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""
    with played(tmp_path, monkeypatch, script) as group, pytest.raises(Unavailable, match=r"rank 1 of 3 .* SIGKILL"):
        group.meet(Room(100, 100))


def test_there_are_as_many_blocks_as_all_ranks_have_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met = []
    monkeypatch.setattr(groups, "Collectives", lambda *arguments: met.append(arguments[1:3]))
    script = """
rank = settings["rank"]
say({"type": "Loaded", "room": {"num_blocks": 100 - 10 * rank, "step_tokens": 500 + rank}})
hear()
sys.stdin.buffer.read()  # until the group is closed
"""
    with played(tmp_path, monkeypatch, script) as group:
        assert group.meet(Room(95, 600)) == Room(80, 501)
    assert met == [(0, 3)]


def test_a_step_that_takes_too_long_ends_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its collectives are ended: whoever waits in one goes on."""
    with played(tmp_path, monkeypatch, "hear()", timeout_s=0.2) as group:
        is_aborted = threading.Event()
        group._collectives = Aborted(is_aborted)
        with pytest.raises(Unavailable, match=r"a step of the 3 ranks took more than 0\.2 s"):
            group.read(lambda: is_aborted.wait(60))
        assert is_aborted.is_set()
        with pytest.raises(Unavailable, match=r"took more than 0\.2 s"):
            group.run(lambda: pytest.fail("nothing runs any more"))


class Aborted:
    """The group's collectives, when they are ended."""

    def __init__(self, is_aborted: threading.Event) -> None:
        self.abort = is_aborted.set


def test_a_fault_behind_the_message_ends_the_group_and_one_before_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(batch: Batch | None) -> None:
        if batch is not None:
            group.share(batch)
        raise ValueError("it broke")

    monkeypatch.setattr(groups, "_NOTICE_S", 0.05)
    with played(tmp_path, monkeypatch, "time.sleep(1000)") as group:
        with pytest.raises(ValueError, match="it broke"):
            group.run(lambda: step(None))
        assert group.run(lambda: 7) == 7
        with pytest.raises(Unavailable, match="a step failed between the 3 ranks of the model: it broke"):
            group.run(lambda: step(Batch()))
        assert group.lost.done()


def test_an_engine_that_could_not_be_made_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "loopwright.engine.executor.load_part", lambda *_: (_ for _ in ()).throw(Unavailable("damaged"))
    )
    monkeypatch.setattr("loopwright.engine.executor.check_part", lambda *_, **__: None)
    (tmp_path / "played_rank.py").write_text(PLAYED + "hear()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(groups, "_MEMBER", "played_rank")
    with pytest.raises(Unavailable, match="damaged"):
        create_executor(tmp_path, num_blocks=8, num_slots=1, num_ranks=2)
    assert processes_of() == {}
