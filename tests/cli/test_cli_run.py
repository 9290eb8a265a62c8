"""`loopwright run` as a process: what goes to stdout and stderr, flags, sandboxes, and how it ends."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from command_rig import COMMAND, environment, run_command, running, write_program

pytestmark = pytest.mark.wasm

TALKER = """
from loopwright import emit, emit_text, log

async def main():
    print("printed")
    log("logged")
    emit({"emitted": 1})
    emit_text("text")
    return "result"
"""


def test_a_result_is_printed_and_nothing_else(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main(name: str): return f'Hello, {name}'")
    done = run_command("run", program, "--name", "Ada", "--model", byte_gguf)
    assert (done.status, done.out, done.err) == (0, "Hello, Ada\n", "")


def test_text_goes_to_stdout_and_everything_else_to_stderr(tmp_path: Path, byte_gguf: Path):
    done = run_command("run", write_program(tmp_path, TALKER), "--model", byte_gguf)
    assert (done.status, done.out) == (0, "text\n")
    asides = ["[stdout] printed", "[log] logged", '[emit] {"emitted": 1}', '[result] "result"']
    assert done.err.splitlines() == asides


@pytest.mark.parametrize("result", ["'text'", "None"])
def test_a_result_that_says_nothing_new_beside_the_text_is_not_told(result: str, tmp_path: Path, byte_gguf: Path):
    source = (
        f"from loopwright import emit_text\nasync def main():\n    emit_text('te'); emit_text('xt'); return {result}"
    )
    done = run_command("run", write_program(tmp_path, source), "--model", byte_gguf)
    assert (done.status, done.out, done.err) == (0, "text\n", "")


def test_text_that_ends_its_line_is_left_as_it_is(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "from loopwright import emit_text\nasync def main(): emit_text('text\\n')")
    assert run_command("run", program, "--model", byte_gguf).out == "text\n"


def test_every_type_of_parameter_is_a_flag(tmp_path: Path, byte_gguf: Path):
    source = """
async def main(text: str, count: int = 1, share: float = 0.5, is_on: bool = False, is_off: bool = True,
               items: list[int] = [], table: dict = {}, maybe: str | None = None, either: int | str = 0, loose=None):
    return [text, count, share, is_on, is_off, items, table, maybe, either, loose]
"""
    flags = ["--text", "7", "--count", "-2", "--share", "1e-3", "--is-on", "--no-is-off", "--items", "[1, 2]"]
    flags += ["--table", '{"a": null}', "--maybe", "x", "--either", "x", "--loose", "x"]
    done = run_command("run", write_program(tmp_path, source), *flags, "--model", byte_gguf)
    assert json.loads(done.out) == ["7", -2, 0.001, True, False, [1, 2], {"a": None}, "x", "x", "x"]


def test_what_follows_two_dashes_is_the_programs(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main(help: int, model: str, seed: str): return [help, model, seed]")
    done = run_command("run", program, "--model", byte_gguf, "--", "--help", "1", "--model", "m", "--seed", "s")
    assert json.loads(done.out) == [1, "m", "s"]


def test_a_program_runs_in_wasm_unless_native_is_asked_for(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "import sys\nasync def main(): return sys.platform")
    assert run_command("run", program, "--model", byte_gguf).out == "wasi\n"
    assert run_command("run", program, "--native", "--model", byte_gguf).out == "linux\n"


def test_a_seed_repeats_a_run(tmp_path: Path, byte_gguf: Path):
    source = """
from loopwright import Context

async def main():
    ctx = Context()
    ctx.append("seed")
    return list((await ctx.generate(max_tokens=24, temperature=1.0)).tokens)
"""
    words = ("run", write_program(tmp_path, source), "--native", "--model", byte_gguf, "--seed")
    first, again, other = (run_command(*words, seed).out for seed in ("5", "5", "6"))
    assert len(json.loads(first)) > 1
    assert first == again != other


def test_a_reader_that_leaves_ends_the_run_without_a_traceback(tmp_path: Path, byte_gguf: Path):
    source = "from loopwright import emit_text\nasync def main():\n    while True: emit_text('a line\\n')"
    process = subprocess.Popen(
        [COMMAND, "run", write_program(tmp_path, source), "--model", byte_gguf],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "a line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_help_in_a_pipe_that_closes_is_no_traceback(tmp_path: Path):
    command = f"'{COMMAND}' --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main(): return 'result'")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [COMMAND, "run", program, "--model", byte_gguf], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "loopwright: No space left on device\n")


def test_text_that_the_terminal_cannot_show_is_escaped(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main(): return 'é'")
    done = run_command("run", program, "--model", byte_gguf, env={"PYTHONIOENCODING": "ascii"})
    assert (done.status, done.out) == (0, "\\xe9\n")


@pytest.mark.parametrize("body", ["await asyncio.sleep(1000)", "while True: pass"])
def test_an_interrupt_ends_a_run_with_one_line(tmp_path: Path, byte_gguf: Path, body: str):
    program = write_program(tmp_path, f"import asyncio\nasync def main():\n    print('begun')\n    {body}")
    with running("run", program, "--model", byte_gguf, err=tmp_path / "err") as process:
        process.until(lambda: "begun" in process.err)
        done = process.stop(signal.SIGINT)
    assert (done.status, done.err) == (130, "[stdout] begun\nloopwright: interrupted\n")


@pytest.mark.model
def test_an_interrupt_while_the_model_is_loaded_is_one_line(tmp_path: Path):
    program = write_program(tmp_path, "async def main(): return 1")
    with running("run", program, err=tmp_path / "err") as process:
        process.until(
            lambda: "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text()
        )  # torch is being imported
        done = process.stop(signal.SIGINT)
    assert (done.status, done.out, done.err) == (130, "", "loopwright: interrupted\n")


def test_the_help_of_a_program_shows_its_flags(tmp_path: Path):
    parameters = "num_sheep: int = 3, names: list[str] = [], of: dict | None = None, either: str | list = ''"
    program = write_program(tmp_path, f'"""Counts\nsheep.\n\nSlowly."""\nasync def main({parameters}): ...')
    done = run_command("run", program, "--help")
    assert done.status == 0
    assert "example:\n  loopwright run" in done.out
    assert "Counts sheep.\n" in done.out
    assert "Slowly" not in done.out
    shown = " ".join(done.out.split())
    assert "--num-sheep VALUE, --num_sheep VALUE int, default 3" in shown
    assert """--names JSON list[str] (as JSON: '["a", "b"]'), default []""" in shown
    assert """--of JSON dict | None (as JSON: '{"a": 1}'), default None""" in shown
    assert "--either VALUE" in shown


def test_nothing_of_torch_is_imported_to_say_what_is_wrong(tmp_path: Path):
    env = environment({"PYTHONPROFILEIMPORTTIME": "1"})
    done = subprocess.run(
        [COMMAND, "run", "absent.py"], capture_output=True, text=True, env=env, check=False, cwd=tmp_path
    )
    assert "cannot read absent.py" in done.stderr
    assert "| torch" not in done.stderr
