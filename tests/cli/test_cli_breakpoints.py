"""`loopwright run --native` on a terminal: breakpoints stop, the debugger reads its keys, and the run goes on."""

import os
import pty
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from command_rig import COMMAND, environment, write_program

PROGRAM = """# /// program
# limits = { seconds = 0.001 }
# ///
from loopwright import Context

async def main():
    ctx = Context()
    ctx.append("a")
    count = 41
    breakpoint()
    count += 1
    turn = await ctx.generate(max_tokens=2, ignore_eos=True)
    return f"<{count} {len(turn.tokens)}>"
"""


def test_a_breakpoint_stops_shows_lines_and_values_and_the_run_goes_on(tmp_path: Path, byte_gguf: Path):
    with terminal(tmp_path, "run", write_program(tmp_path, PROGRAM), "--native", "--model", byte_gguf) as session:
        shown = session.until("(Pdb) ")
        assert "program.py(11)main()" in shown
        assert "-> count += 1" in shown
        assert "41" in session.type("p count")
        assert "ctx = Context()" in session.type("list")
        assert "Breakpoint 1" in session.type("break 13")  # by line, though the program lies elsewhere
        assert 'return f"<' in session.type("continue")  # the model has run meanwhile
        assert "42" in session.type("p count")
        session.write("continue")
        assert "<42 2>" in session.rest()  # past its wall time: a debugger takes its own
        assert session.process.wait(60) == 0


def test_leaving_the_debugger_ends_the_run_with_one_line(tmp_path: Path, byte_gguf: Path):
    with terminal(tmp_path, "run", write_program(tmp_path, PROGRAM), "--native", "--model", byte_gguf) as session:
        session.until("(Pdb) ")
        session.write("quit")
        shown = session.rest()
        assert "loopwright: cancelled: the debugger was left" in shown
        assert "Traceback" not in shown
        assert session.process.wait(60) == 1


def test_a_native_program_reads_what_is_typed(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main():\n    return 'got ' + input('? ')\n")
    with terminal(tmp_path, "run", program, "--native", "--model", byte_gguf) as session:
        session.until("? ")
        session.write("words")
        assert "got words" in session.rest()


class Session:
    """A command on a terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", screen: int) -> None:
        self.process = process
        self._screen = screen

    def write(self, line: str) -> None:
        os.write(self._screen, line.encode() + b"\n")

    def type(self, line: str) -> str:
        """What is shown after the line, up to the next prompt."""
        self.write(line)
        return self.until("(Pdb) ")

    def until(self, end: str) -> str:
        shown = ""
        while not shown.endswith(end):
            try:
                shown += os.read(self._screen, 1).decode(errors="replace")
            except OSError:
                raise AssertionError(shown) from None
        return shown

    def rest(self) -> str:
        shown = b""
        while True:
            try:
                shown += os.read(self._screen, 4096)
            except OSError:  # how a terminal ends
                return shown.decode(errors="replace")


@contextmanager
def terminal(folder: Path, *words: str | Path) -> Iterator[Session]:
    """Runs the command in another folder than its program's; killed if the block leaves it."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    screen, keys = pty.openpty()
    command: Sequence[str] = [COMMAND, *map(str, words)]
    env = environment({"TERM": "dumb", "PYTHONBREAKPOINT": "pdb.set_trace"})
    process = subprocess.Popen(command, stdin=keys, stdout=keys, stderr=keys, env=env, cwd=elsewhere)
    os.close(keys)
    try:
        yield Session(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
