"""A child process is over when its block is left, also if an interrupt comes at the worst of times."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from loopwright.core.child_process import child_process, output_of

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The children, by process id; while each starts, an interrupt comes."""
    pids: list[int] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            pids.append(self.pid)
            signal.raise_signal(signal.SIGINT)  # before anybody has the object

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    return pids


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupt_while_a_child_starts_ends_the_child_before_it_is_raised(started: list[int]) -> None:
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        output_of(SLEEPS)
    assert len(started) == 1
    assert not is_alive(started[0])
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_child_is_over_when_its_block_is_left(error: type[BaseException]) -> None:
    with pytest.raises(error), child_process(SLEEPS) as process:
        raise error
    assert process.returncode == -signal.SIGKILL


def test_what_a_child_says_and_how_it_ended_are_told_on_any_thread() -> None:
    told: list[Any] = []
    command = [sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"]
    thread = threading.Thread(target=lambda: told.append(output_of(command)))
    thread.start()
    thread.join()
    assert [(one.stdout, one.stderr, one.returncode) for one in told] == [("out\n", "err", 3)]
