"""Models that are damaged, absent or of another kind: one line that names the file, and no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from command_rig import Done, run_command, write_byte_gguf, write_program
from loopwright.cli import main


@pytest.fixture
def error_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str | Path], str]:
    """Runs a program beside the model, in this process; returns the line it failed with."""
    program = write_program(tmp_path, "async def main(): return 1")

    def run(model: str | Path) -> str:
        status = main(["run", str(program), "--native", "--model", str(model)])
        return Done(status, *capsys.readouterr()).error_line()

    return run


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "not GGUF": lambda data: b"<html>" + data,
    "cut in its header": lambda data: data[:2000],
    "cut in its tensors": lambda data: data[:-100_000],
    "of another version": lambda data: data[:4] + b"\x09" + data[5:],
    "with absurd counts": lambda data: data[:8] + b"\xff" * 16 + data[24:],
    "with names that are no text": lambda data: data.replace(b"token_embd", b"\xff\xfe\xfd_embd"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_gguf_file_is_named_in_one_line(damage: str, tmp_path: Path, byte_gguf: Path, error_of):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGES[damage](byte_gguf.read_bytes()))
    assert str(path) in error_of(path)


def test_a_damaged_file_ends_the_process_with_that_line(tmp_path: Path, byte_gguf: Path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGES["cut in its tensors"](byte_gguf.read_bytes()))
    program = write_program(tmp_path, "async def main(): return 1")
    assert str(path) in run_command("run", program, "--model", path).error_line()


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.block_count": 3}, "has no tensor 'blk.2."),
        ({"llama.embedding_length": 32}, "has shape"),
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.chat_template": "{% for %}"}, "template"),
    ],
)
def test_a_whole_file_that_makes_no_sense_says_where(
    metadata: dict[str, object], complaint: str, tmp_path: Path, error_of
):
    path = write_byte_gguf(tmp_path / "odd.gguf", metadata)
    assert complaint in error_of(path)


def test_a_model_that_nobody_knows_says_what_can_be_given(error_of):
    line = error_of("no-such-model")
    assert "there is no model 'no-such-model'" in line
    assert "SmolLM2-135M-Instruct" in line


def test_a_folder_without_a_model_says_what_it_lacks(tmp_path: Path, error_of):
    (tmp_path / "folder").mkdir()
    assert "config.json" in error_of(tmp_path / "folder")


def test_a_wrong_model_of_a_server_is_one_line_before_it_serves(tmp_path: Path):
    assert "no model 'nope'" in run_command("serve", "--port", "0", "--model", "nope").error_line()


def test_a_file_that_cannot_be_opened_is_one_line(tmp_path: Path, error_of):
    path = tmp_path / "model.gguf"
    path.symlink_to(path)  # a loop: not even root can open it
    assert "no model" in error_of(path)
