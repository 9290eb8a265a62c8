"""A process that is started for a piece of work, and is over when the work's block is left, whatever ends it.

Never decides what runs. `subprocess.run` loses a child if an interrupt comes while it starts: the child goes on beside
whoever clears up after it. Used where something is built, compiled or fetched.
"""

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any


@contextmanager
def child_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[str] | None = None,
    stderr: int | IO[str] | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """The process, with nothing to read; killed if the block leaves it. Raises OSError when it cannot be started."""
    process: subprocess.Popen[str] | None = None
    try:
        with _interrupts_later():
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True
            )
        yield process
    finally:
        if process is not None:
            process.kill()  # only after an interrupt, or an error, is it still there
            with process:  # closes its pipes, and waits for its end
                pass


def output_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """What the process said, once it has ended. Raises OSError when it cannot be started."""
    with child_process(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """What interrupts the block is raised at its end. Only the main thread hears of interrupts."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    received: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if received:
        usual(*received[0])
