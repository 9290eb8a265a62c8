"""The installed `loopwright` command in processes of its own: run to its end, or as a server with its children."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.engine.byte_model import BYTE_CONTROLS, BYTE_TOKENS, byte_model
from loopwright.engine.model_files import write_gguf
from loopwright.text import byte_level
from system_rig import CHATML

COMMAND = str(Path(sys.executable).parent / "loopwright")
TIMEOUT_S = 120.0  # nothing here takes as long: a test that hangs fails


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    def error_line(self) -> str:
        """What it failed with: the one line of stderr, without a traceback, and nothing on stdout."""
        assert self.out == ""
        assert self.status == 1, (self.status, self.err)
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("loopwright: "), self.err
        return self.err.removeprefix("loopwright: ").rstrip("\n")


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **(changes or {})}


def run_command(*words: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> Done:
    """Runs `loopwright WORDS` to its end."""
    done = subprocess.run(
        [COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        check=False,
        **options,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that runs."""

    def __init__(self, process: "subprocess.Popen[str]", err: Path) -> None:
        self.process = process
        self._err = err

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    def until(self, is_true: Callable[[], Any]) -> None:
        """Waits for something that the process does."""
        eventually(lambda: is_true() or self.process.poll() is not None)
        assert is_true(), (self.process.poll(), self.err)

    def stop(self, number: signal.Signals) -> Done:
        """Sends it a signal, and waits for its end."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> Done:
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        return Done(self.process.returncode, out, self.err)


@contextmanager
def running(*words: str | Path, err: Path, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Runs `loopwright WORDS` beside the block; its stderr goes to the file `err`. Killed if the block leaves it."""
    with err.open("w") as err_file:
        process = subprocess.Popen(
            [COMMAND, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err_file,
            text=True,
            encoding="utf-8",
            env=environment(env),
            start_new_session=True,
        )
    try:
        yield Running(process, err)
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Server:
    """A `loopwright serve` that answers."""

    running: Running
    url: str
    programs: Path

    def command(self, *words: str | Path) -> Done:
        """Runs a verb that talks to a server, against this one."""
        return run_command(*words, env={"LOOPWRIGHT_URL": self.url})

    def workers(self) -> dict[str, int]:
        """The process id of each worker that lives, by its name."""
        return workers_of(self.programs)


@contextmanager
def serving(folder: Path, *flags: str | Path, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server on a free port; `folder` holds its programs and its stderr. Asked to end after the block."""
    programs = folder / "programs"
    with running(
        "serve",
        "--port",
        "0",
        "--programs-dir",
        programs,
        "--state-dir",
        folder / "state",
        "--set",
        "server.grace_s=1",
        *flags,
        err=folder / "err.txt",
        env=env,
    ) as process:
        process.until(lambda: "http://" in process.err)
        (url,) = re.findall(r"(http://\S+)/v1 ", process.err)
        yield Server(process, url, programs)
        if process.process.poll() is None:
            assert process.stop(signal.SIGTERM).status == 0


def workers_of(programs: Path) -> dict[str, int]:
    """The workers of the server with that folder of programs, whether it lives or not."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it ended meanwhile
        if "loopwright.compose.worker" in words and f'"{programs}"' in words[-2] and state != "Z":
            found[words[words.index("loopwright.compose.worker") + 1]] = int(folder.name)
    return found


def eventually(is_true: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
    """Returns when the condition holds; fails the test when it never does."""
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.01)


def write_program(folder: Path, source: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(source, "utf-8")
    return path


def write_byte_gguf(path: Path, metadata: Mapping[str, Any] | None = None, seed: int = 0) -> Path:
    """The byte model as a GGUF file with its tokenizer: a model that loads in no time."""
    pieces = [byte_level.CHARACTERS[byte] for byte in range(256)] + list(BYTE_CONTROLS)
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * len(BYTE_CONTROLS),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": len(BYTE_TOKENS) - len(BYTE_CONTROLS),
        "tokenizer.ggml.eos_token_id": len(BYTE_TOKENS) - len(BYTE_CONTROLS) + 1,
        "tokenizer.chat_template": CHATML,
    }
    write_gguf(byte_model(seed), path, metadata={**tokenizer, **(metadata or {})})
    return path
