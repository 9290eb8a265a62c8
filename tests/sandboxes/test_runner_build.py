"""The runner's cache: what is kept, when it is built again, and how a cache that cannot be written fails.

The build itself is stood in for by two small files: the real one takes half a minute, and every Wasm test uses it.
"""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from loopwright.core.errors import Unavailable
from loopwright.runtime.sandboxes import runner_build
from loopwright.runtime.sandboxes.runner_build import is_intact, prepare_runner, runner_files


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built, in order; building writes a small file."""
    done: list[str] = []

    def build(_scratch: Path, output: Path) -> None:
        done.append("component")
        output.write_bytes(b"component")

    def compile_(component: Path, output: Path) -> None:
        assert component.read_bytes() == b"component"
        done.append("compiled")
        output.write_bytes(b"machine code")

    monkeypatch.setattr(runner_build, "_build", build)
    monkeypatch.setattr(runner_build, "_compile", compile_)
    return done


def prepare(cache_dir: Path) -> list[str]:
    stages: list[str] = []
    prepare_runner(cache_dir, lambda stage, _fraction: stages.append(stage))
    return stages


def test_the_second_time_nothing_is_built(tmp_path: Path, built: list[str]) -> None:
    assert len(prepare(tmp_path)) == 3
    assert prepare(tmp_path) == []
    assert built == ["component", "compiled"]
    assert {path.suffix for path in (tmp_path / "runner").iterdir()} == {"", ".wasm", ".cwasm", ".sha256"}


def test_a_corrupt_compiled_file_is_compiled_again(tmp_path: Path, built: list[str]) -> None:
    prepare(tmp_path)
    files = runner_files(tmp_path / "runner")
    files.compiled.write_bytes(b"machine c0de")
    prepare(tmp_path)
    assert built == ["component", "compiled", "compiled"]
    assert files.compiled.read_bytes() == b"machine code"


def test_a_corrupt_component_is_built_again(tmp_path: Path, built: list[str]) -> None:
    prepare(tmp_path)
    files = runner_files(tmp_path / "runner")
    files.component.write_bytes(b"")
    files.compiled.unlink()
    prepare(tmp_path)
    assert built == ["component", "compiled"] * 2


def test_a_file_without_its_checksum_does_not_count(tmp_path: Path, built: list[str]) -> None:
    prepare(tmp_path)
    files = runner_files(tmp_path / "runner")
    files.compiled.with_name(files.compiled.name + ".sha256").unlink()
    assert not is_intact(files.compiled)


def test_an_interrupt_of_a_build_stays_one_when_its_folder_cannot_be_removed(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_scratch: Path, output: Path) -> None:
        (output.parent / "half").write_bytes(b"half")
        raise KeyboardInterrupt

    def refuse(*_words: object, **_options: object) -> None:
        raise OSError(39, "Directory not empty")  # as where a child still writes

    with monkeypatch.context() as patched:
        patched.setattr(runner_build, "_build", interrupt)
        patched.setattr(os, "rmdir", refuse)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path)
    assert [path for path in (tmp_path / "runner").iterdir() if path.is_dir()]
    prepare(tmp_path)
    assert [path for path in (tmp_path / "runner").iterdir() if path.is_dir()] == []


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_component: Path, output: Path) -> None:
        output.write_bytes(b"machi")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner_build, "_compile", fail)
    with pytest.raises(Unavailable, match=r"cannot prepare the Python runner in .*: No space left on device") as caught:
        prepare(tmp_path)
    assert "LOOPWRIGHT_CACHE_DIR" in caught.value.hint
    assert not list((tmp_path / "runner").glob("*.cwasm*"))
    assert not list((tmp_path / "runner").glob(".building*"))


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, built: list[str]) -> None:
    (tmp_path / "runner" / ".building-x" / "app").mkdir(parents=True)
    prepare(tmp_path)
    assert not list((tmp_path / "runner").glob(".building*"))


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_build, "_build", lambda _scratch, output: output.write_bytes(b"no component"))
    with pytest.raises(Unavailable, match=r"cannot compile .*\.wasm: "):
        prepare(tmp_path)
    assert not list((tmp_path / "runner").glob("*.cwasm*"))


def test_a_cache_that_cannot_be_made_is_one_line(tmp_path: Path, built: list[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot prepare the Python runner"):
        prepare(tmp_path / "file")


def test_a_failing_componentize_py_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_build, "_BUILD", "raise SystemExit('no such world')")
    with pytest.raises(Unavailable, match="exit code 1 and said: no such world"):
        prepare(tmp_path)


def test_only_some_versions_are_kept(tmp_path: Path, built: list[str]) -> None:
    folder = tmp_path / "runner"
    folder.mkdir()
    for age in range(9):
        path = folder / f"runner-{age}.cwasm"
        path.write_bytes(b"old")
        os.utime(path, (age, age))
    prepare(tmp_path)
    kept = sorted(path.name for path in folder.glob("*.cwasm"))
    assert kept == sorted([runner_files(folder).compiled.name, *(f"runner-{age}.cwasm" for age in (6, 7, 8))])


def test_the_key_depends_on_the_sources_and_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = runner_files(tmp_path)
    monkeypatch.setattr(runner_build, "_cpu_features", lambda: "another machine")
    other_machine = runner_files(tmp_path)
    assert other_machine.component == before.component
    assert other_machine.compiled != before.compiled
    source = tmp_path / "port.py"
    source.write_text("pass")
    monkeypatch.setattr(runner_build, "_sources", lambda: [source])
    assert runner_files(tmp_path).component != before.component


def test_a_second_process_waits_for_the_first(tmp_path: Path, built: list[str]) -> None:
    folder = tmp_path / "runner"
    folder.mkdir()
    stages: list[str] = []
    is_waiting = threading.Event()

    def progress(stage: str, _fraction: float | None) -> None:
        stages.append(stage)
        is_waiting.set()

    second = threading.Thread(target=prepare_runner, args=(tmp_path, progress))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert is_waiting.wait(30)
        assert built == []
        prepared = runner_files(folder)
        for path in (prepared.component, prepared.compiled):  # what the first process leaves
            path.with_name("scratch").write_bytes(b"built by the first")
            runner_build._keep(path.with_name("scratch"), path)
    second.join(30)
    assert stages == ["waiting for another process that prepares the Python runner"]
    assert built == []
