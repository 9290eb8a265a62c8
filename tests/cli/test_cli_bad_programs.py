"""Programs that cannot run or do not end well: what the command line says of each."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from command_rig import run_command, write_program
from loopwright.cli import main
from loopwright.cli.program_flags import parse_program_flags
from loopwright.runtime.program import read_program

REJECTED = {
    "a syntax error": ("async def main(:\n    return 1\n", "program.py, line 1: invalid syntax", "Python 3.11"),
    "a main that is not async": ("def main():\n    return 1\n", "line 1: main is not async", "async def main"),
    "no main": ("x = 1\n", "program.py has no main", "async def main"),
    "a default that is no value": ("async def main(x=open): ...\n", "the default of 'x' is not a JSON value", "inside"),
    "metadata that is not TOML": (
        "# /// program\n# limits = {\n# ///\nasync def main(): ...\n",
        "the metadata block is not TOML",
        "",
    ),
    "a limit that does not exist": (
        "# /// program\n# limits = { luck = 1 }\n# ///\nasync def main(): ...\n",
        "metadata: Object contains unknown field `luck`",
        "",
    ),
    "null bytes": ("async def main(): ...\n\0", "program.py: source code string cannot contain null bytes", ""),
}


@pytest.mark.parametrize("case", REJECTED)
@pytest.mark.parametrize("verb", ["run", "deploy"])
def test_a_file_that_is_no_program_is_one_line(verb: str, case: str, tmp_path: Path, capsys):
    source, message, hint = REJECTED[case]
    assert main([verb, str(write_program(tmp_path, source))]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("loopwright: program.py")
    assert err.count("\n") == 1
    assert message in err
    assert hint in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the following arguments are required: --count"),
        (["--count", "x"], "argument --count: 'x' is no int"),
        (["--count", "1", "--items", "{}"], "the argument 'items' is dict; main wants list[int]"),
        (["--count", "1", "--items", "[1"], """argument --items: '[1' is no list[int] (as JSON: '["a", "b"]')"""),
        (["--count", "1", "--other", "2"], "unrecognized arguments: --other 2"),
        (["--coumt", "1", "--count", "1"], "unrecognized arguments: --coumt 1; did you mean --count?"),
        (["--coun", "1"], "the following arguments are required: --count"),
        (["1"], "the following arguments are required: --count"),
        (["--count", "1", "2"], "unrecognized arguments: 2"),
        (["--count"], "argument --count: expected one argument"),
    ],
)
def test_wrong_flags_of_a_program_are_a_usage_line(words: Sequence[str], complaint: str, tmp_path: Path, capsys):
    path = write_program(tmp_path, "async def main(count: int, items: list[int] = []): ...")
    with pytest.raises(SystemExit) as end:
        main(["run", str(path), *words])
    assert end.value.code == 2
    usage, _, error = capsys.readouterr().err.partition("\n")
    assert usage.startswith(f"usage: loopwright run {path}")
    assert error.endswith(f"error: {complaint}\n") or f"error: program.py: {complaint}\n" in error


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", str(2**62), "٣x"])
def test_a_seed_that_is_no_seed_is_a_usage_line(seed: str, tmp_path: Path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", str(write_program(tmp_path, "async def main(): ...")), f"--seed={seed}"])
    assert end.value.code == 2
    assert "argument --seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "words", "arguments"),
    [
        ("no_cache: bool = False", ["--no-cache"], {"no_cache": True}),
        ("no_cache: bool", ["--no-no-cache"], {"no_cache": False}),
        ("cache: bool = True, no_cache: bool = False", ["--no-cache"], {"no_cache": True}),
        ("cache: bool = True", ["--no_cache"], {"cache": False}),
        ("top_k: int = 1", ["--top_k", "2"], {"top_k": 2}),
        ("help: bool = False", ["--help"], {"help": True}),
        ("text: str = ''", ["--text=--text"], {"text": "--text"}),
        ("share: float = 0.1", ["--share", "-1"], {"share": -1.0}),
        ("share: float = 0.1", [], {}),
    ],
)
def test_flags_become_the_arguments_of_main(parameters: str, words: list[str], arguments: dict[str, object]):
    program = read_program(f"async def main({parameters}): ...", "program.py")
    assert parse_program_flags(program, "loopwright run program.py", words) == arguments


@pytest.mark.parametrize("kind", ["absent", "a folder", "not text"])
def test_a_file_that_cannot_be_read_is_one_line_and_status_2(kind: str, tmp_path: Path, capsys):
    path = tmp_path / "program.py"
    if kind == "a folder":
        path.mkdir()
    elif kind == "not text":
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit) as end:
        main(["run", str(path)])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert str(path) in err
    assert err.count("\n") == 1


@pytest.mark.wasm
def test_an_import_that_the_sandbox_lacks_says_what_there_is(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "import numpy\nasync def main(): ...")
    done = run_command("run", program, "--model", byte_gguf)
    assert (done.status, done.out) == (1, "")
    *shown, last = done.err.splitlines()
    assert shown == [
        "Traceback (most recent call last):",
        '  File "program.py", line 1, in <module>',
        "    import numpy",
        "ModuleNotFoundError: No module named 'numpy'",
    ]
    assert "No module named 'numpy'" in last
    assert "the sandbox has only Python's standard library and loopwright" in last


RAISER = """
from loopwright import emit_text

def divide(number):
    return 1 / number

async def main():
    emit_text("so far")
    return divide(0)
"""


@pytest.mark.wasm
@pytest.mark.parametrize("flags", [[], ["--native"]], ids=["wasm", "native"])
def test_a_program_that_raises_shows_its_own_lines_and_none_of_ours(flags: list[str], tmp_path: Path, byte_gguf: Path):
    done = run_command("run", write_program(tmp_path, RAISER), *flags, "--model", byte_gguf)
    assert (done.status, done.out) == (1, "so far\n")
    files = [line for line in done.err.splitlines() if line.startswith("  File ")]
    assert files == ['  File "program.py", line 9, in main', '  File "program.py", line 5, in divide']
    assert done.err.splitlines()[-1] == (
        "loopwright: program_error: ZeroDivisionError: division by zero (program.py, line 5)"
    )


LIMITS = {
    "cpu_seconds = 0.5": ("while True: pass", "limit", "limits = { cpu_seconds ="),
    "seconds = 0.5": ("await asyncio.sleep(1000)", "deadline", "limits = { seconds ="),
    "memory_mb = 48": ("rest = [bytearray(1000) for _ in range(10**6)]", "limit", "limits = { memory_mb ="),
    "max_output_bytes = 100": ("print('x' * 101)", "limit", "limits = { max_output_bytes ="),
}


@pytest.mark.wasm
@pytest.mark.parametrize("limit", LIMITS)
def test_a_program_over_a_limit_ends_with_a_line_that_names_it(limit: str, tmp_path: Path, byte_gguf: Path):
    body, code, hint = LIMITS[limit]
    source = f"# /// program\n# limits = {{ {limit} }}\n# ///\nimport asyncio\nasync def main():\n    {body}\n"
    done = run_command("run", write_program(tmp_path, source), "--model", byte_gguf)
    assert (done.status, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert last.startswith(f"loopwright: {code}: ")
    assert hint in last
    assert "loopwright/" not in done.err  # no file of ours
