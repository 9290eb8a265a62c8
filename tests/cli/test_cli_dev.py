"""`loopwright dev` as a process: a file is written twice and more, and each save runs beside the same model."""

import argparse
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from command_rig import COMMAND, environment, eventually, write_program
from loopwright.cli.dev import SavedFile, _spec
from loopwright.cli.dev_view import DevView

pytestmark = pytest.mark.wasm

WRITER = """from loopwright import Context, choice, log
async def main(name: str = "x"):
    log("{word}", name)
    ctx = Context()
    ctx.append("a")
    turn = await ctx.generate(grammar=choice(["yes", "yet"]), emit=True)
    return "{word}"
"""


class Dev:
    """A running `loopwright dev` whose output is read from files."""

    def __init__(self, folder: Path, *words: str | Path) -> None:
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [COMMAND, "dev", *map(str, words)], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment()
            )

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    def until(self, is_true: Callable[[], bool]) -> None:
        eventually(lambda: is_true() or self.process.poll() is not None)
        assert is_true(), (self.process.poll(), self.out, self.err)

    def until_waiting(self, num_times: int) -> None:
        self.until(lambda: self.out.count("waits for the next save") == num_times)


def test_each_save_runs_with_its_trace_and_a_wrong_one_is_said_and_waited_out(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, WRITER.format(word="first"))
    trace = tmp_path / "trace.jsonl"
    dev = Dev(tmp_path, program, "--name", "Ada", "--model", byte_gguf, "--trace", trace)
    try:
        dev.until_waiting(1)
        assert "[log] first Ada" in dev.out
        assert 'ok: "first"' in dev.out
        forced = [line for line in dev.out.splitlines() if "'y'" in line]
        assert len(forced) == 1
        assert forced[0].endswith("forced")
        assert "one of 2 allowed" in dev.out
        assert "grammar choice" in dev.out
        assert "in: 0 tokens of the context, 0 cached, 1 run · out: 3 tokens, grammar_end" in dev.out

        write_program(tmp_path, WRITER.format(word="second"))
        dev.until_waiting(2)
        assert 'ok: "second"' in dev.out

        write_program(tmp_path, "async def main(:\n")
        dev.until_waiting(3)
        assert f"{program}:1:16: syntax: invalid syntax" in dev.out

        write_program(tmp_path, "async def main(other: int):\n    return other\n")
        dev.until_waiting(4)
        assert "the following arguments are required: --other" in dev.err

        write_program(tmp_path, WRITER.format(word="third").replace("ctx.append", "ctx.apend"))
        dev.until_waiting(5)
        assert f"{program}:5:9: name: Context has no 'apend' (did you mean 'append'?)" in dev.out
        assert f'File "{program.name}", line 5, in main' in dev.out  # it ran, and its own line is shown

        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(60) == 130
        assert dev.err.endswith("loopwright: interrupted\n")
    finally:
        dev.process.kill()
        dev.process.wait()
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert {"issued", "sampled", "completed", "observed"} <= {record["type"] for record in records}
    runs = {record["run"] for record in records}
    assert len(runs) == 3
    assert sum(record["type"] == "sampled" for record in records) == 6  # two runs that generated, three tokens each


def test_a_save_ends_the_run_that_is_still_running(tmp_path: Path, byte_gguf: Path):
    endless = "import asyncio\nasync def main():\n    print('begun')\n    await asyncio.sleep(10**6)\n"
    program = write_program(tmp_path, endless)
    dev = Dev(tmp_path, program, "--model", byte_gguf)
    try:
        dev.until(lambda: "begun" in dev.out)
        write_program(tmp_path, "async def main():\n    return 'over'\n")
        dev.until(lambda: 'ok: "over"' in dev.out)
        assert "cancelled: cancelled on request" in dev.out
    finally:
        dev.process.kill()
        dev.process.wait()


@pytest.mark.parametrize("is_native", [True, False])
def test_what_the_sandbox_has_not_is_not_said_of_a_program_that_runs_without_it(
    is_native: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = write_program(tmp_path, "import numpy\nasync def main(): return open('notes.txt').reed(), nmpy\n")
    arguments = argparse.Namespace(file=str(program), native=is_native, seed=None, program_flags=[])
    assert _spec(arguments, SavedFile(program), DevView(str(program)), frozenset()) is not None
    codes = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines() if f"{program}:" in line]
    assert codes == (["name"] if is_native else ["module", "sandbox", "name"])
