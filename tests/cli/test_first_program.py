"""docs/first-program.md, executed: its files are written, its commands run in order, what it shows is what comes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from command_rig import COMMAND, eventually

pytestmark = pytest.mark.wasm

GUIDE = Path(__file__).parents[2] / "docs" / "first-program.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SHIM = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] in ("run", "dev", "serve"):
    words += ["--model", {model!r}]
if words[0] == "serve":
    words += ["--port", "0", "--programs-dir", "programs"]
os.execv({command!r}, [{command!r}, *words])
"""


@dataclass
class Reader:
    """A reader who does what the guide says, with a model that loads in no time and a port that is free."""

    folder: Path
    environment: dict[str, str]
    shown: str = ""
    url: str = ""
    statuses: dict[str, int] = field(default_factory=dict)
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def write(self, text: str) -> None:
        name = text.partition("\n")[0].removeprefix("# ")
        assert name.endswith(".py"), text
        (self.folder / name).write_text(text, "utf-8")

    def do(self, line: str) -> None:
        if line == "loopwright serve":
            output = self.start(line, lambda shown: "http://" in shown)
            (address,) = re.findall(r"http://(\S+)/v1 ", output)
            self.url = address
            self.environment["LOOPWRIGHT_URL"] = f"http://{address}"
        elif line.startswith("loopwright dev "):
            self.shown += self.start(line, lambda shown: "waits for the next save" in shown)
            self.running.pop().send_signal(signal.SIGINT)
        else:
            line = line.replace("127.0.0.1:8000", self.url)
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            self.shown += done.stdout
            self.statuses[line] = done.returncode

    def start(self, line: str, is_ready: Callable[[str], bool]) -> str:
        output = self.folder / f"output-{len(self.running)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        self.running.append(process)
        eventually(lambda: is_ready(output.read_text()) or process.poll() is not None)
        assert is_ready(output.read_text()), output.read_text()
        return output.read_text()


@pytest.fixture
def reader(tmp_path: Path, byte_gguf: Path):
    commands = tmp_path / "bin"
    commands.mkdir()
    shim = commands / "loopwright"
    shim.write_text(SHIM.format(python=sys.executable, model=str(byte_gguf), command=COMMAND))
    shim.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    reader = Reader(folder, {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"})
    started = reader.running
    yield reader
    for process in started:
        process.terminate()
        process.wait(60)


def test_the_guide_works_as_it_is_written(reader: Reader):
    num_shown = 0
    for kind, text in BLOCK.findall(GUIDE.read_text("utf-8")):
        if kind == "python":
            reader.write(text)
        elif kind == "sh":
            reader.shown = ""
            for line in text.splitlines():
                reader.do(line)
        else:
            assert kind == "text"
            assert reader.shown == text
            num_shown += 1
        if "loopwright dev" in text:
            assert "segment ends · in: " in reader.shown
        if "/runs" in text:
            assert '"code":"ok"' in reader.shown.replace(" ", "")
            assert '"reason"' in reader.shown
        if "chat/completions" in text:
            assert '"finish_reason"' in reader.shown
    assert num_shown == 2
    failing = [line for line, status in reader.statuses.items() if status]
    assert failing == ["loopwright check wrong.py", "loopwright run broken.py"]
