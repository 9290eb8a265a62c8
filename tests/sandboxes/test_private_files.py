"""Files of a program's own: what works, what nobody gets out of, where they end, and that they are gone afterwards."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from loopwright.core.errors import LimitExceeded, ProgramError, Unavailable
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes import private_files
from loopwright.runtime.sandboxes.private_files import FileFolders

from .conftest import Bench
from .fake_guest import FakeGuest
from .test_programs import program

WITH_FILES = Limits(max_file_bytes=1 << 20)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where the folders of runs are made. None is left at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.glob("loopwright-files-*")) == []


def run(bench: Bench, body: str, limits: Limits = WITH_FILES) -> Any:
    source = "import os, pathlib, shutil, tempfile\n" + program(body)
    return json.loads(bench.run(source, limits=limits))


def test_files_are_written_read_listed_and_deleted(wasm: Bench) -> None:
    found = run(
        wasm,
        """
with open("notes.txt", "w") as file:
    file.write("hällo")
with open("notes.txt", "a") as file:
    file.write("!")
os.makedirs("deep/er")
path = pathlib.Path("deep/er/data.bin")
path.write_bytes(bytes(range(256)))
with open(path, "r+b") as file:
    file.seek(10); file.write(b"xy"); file.truncate(100)
found = [open("/notes.txt").read(), sorted(os.listdir(".")), os.path.getsize(path), os.getcwd()]
found.append(path.read_bytes()[8:14].hex())
shutil.copy(path, "copy"); os.replace("copy", "other"); shutil.rmtree("deep")
with tempfile.TemporaryDirectory() as place:
    pathlib.Path(place, "x").write_text("x")
return [*found, os.listdir("/")]
""",
    )
    assert found[:4] == ["hällo!", ["deep", "notes.txt"], 100, "/"]
    assert found[4] == "080978790c0d"
    assert sorted(found[5]) == ["notes.txt", "other"]


def test_await_goes_on_between_writes_and_runs_do_not_see_each_other(wasm: Bench) -> None:
    source = program(
        """
import os
before = os.listdir(".")
for n in range(20):
    with open("log", "a") as file:
        file.write(f"{await issue(op='echo', value=value + n)}\\n")
return [before, [int(line) for line in open("log")]]
""".replace("value + n", "n")
    )

    async def scenario(sandbox: Any) -> list[str]:
        runs = (sandbox.run(source, "p.py", "{}", FakeGuest(), WITH_FILES) for _ in range(20))
        return await asyncio.gather(*runs)

    assert [json.loads(one) for one in wasm.drive(scenario)] == [[[], list(range(20))]] * 20


@pytest.mark.parametrize(
    "act",
    [
        "open('/etc/passwd')",
        "open('../secret')",
        "open('/../secret')",
        "open('a/../../secret')",
        "os.symlink('/etc/passwd', 'link'); open('link')",
        "os.symlink('../secret', 'link'); open('link')",
        "os.symlink('..', 'link'); open('link/secret')",
        "os.symlink('../secret', 'link'); open('link', 'w').write('x')",
        "os.symlink('..', 'link'); os.listdir('link')",
        "os.symlink('..', 'link'); os.remove('link/secret')",
        "os.symlink('..', 'link'); os.rename('here', 'link/there')",
        "os.link('../secret', 'hard')",
        "os.rename('../secret', 'mine')",
        "os.rename('here', '../there')",
        "os.mkdir('../made')",
        "os.rmdir('/')",
        "os.chdir('..'); open('secret')",
    ],
)
def test_nothing_leads_out(wasm: Bench, act: str, folder: Path) -> None:
    (folder / "secret").write_text("secret")
    answer = run(
        wasm,
        f"open('here', 'w').close()\nos.mkdir('a')\ntry:\n    {act}\nexcept OSError as error:\n    return 'refused'",
    )
    assert answer == "refused"
    assert (folder / "secret").read_text() == "secret"
    assert [path.name for path in folder.iterdir()] == ["secret"]


CHAIN = """
def chain(path, length):
    os.makedirs(path, exist_ok=True)
    while len(path) < length:
        path += 'n' * min(250, length - len(path) - 1) + '/'
        os.mkdir(path)
    return path
"""  # folders in folders, to a path of that length: a longer one cannot be opened


@pytest.mark.parametrize(
    "body",
    [
        "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 16))",
        "n = 0\nwhile True:\n    open(f'f{n}', 'wb').write(b'x'); n += 1",
        "n = 0\nwhile True:\n    os.makedirs(f'{n}/' + '/'.join('abcdefgh')); n += 1",
        "while True:\n    open('big', 'ab').write(bytes(1 << 16)); await asyncio.sleep(0)",
        "while True:\n    open('big', 'ab').write(bytes(1 << 16)); await issue(op='echo')",
        "await asyncio.sleep(0)\nopen('big', 'wb').write(bytes(1 << 21))\nawait issue(op='never')",
        "try:\n    while True: open('big', 'ab').write(bytes(1 << 16))\nexcept BaseException: pass",
        CHAIN + "end = chain('/', 4070)\nwhile True:\n    open(end + 'f', 'ab').write(bytes(1 << 16))",
        CHAIN + "end, n = chain('/b/', 4000), 0\nwhile True:\n    os.mkdir(f'/{n}')\n"
        "    open(f'/{n}/f', 'wb').write(bytes(1 << 18))\n    deep = chain(f'/c{n}/', 4000)\n"
        "    os.rename(f'/{n}', deep + 'a'); os.rename(f'/c{n}', f'{end}c{n}'); n += 1",
        "path = ''\nfor _ in range(1000):\n    path += 'd/'; os.mkdir(path)\nawait issue(op='never')",
    ],
)
def test_files_end_at_their_limit(wasm: Bench, body: str) -> None:
    message = r"(limit is 1048576|more than 1024 files|folders lie deeper than 64)"
    with pytest.raises(LimitExceeded, match=message) as caught:
        run(wasm, body)
    assert caught.value.hint


def test_what_stays_below_the_limit_may_be_written_again_and_again(wasm: Bench) -> None:
    assert run(wasm, "for n in range(100): open('same', 'wb').write(bytes(1 << 18))\nreturn n") == 99


def test_a_sparse_file_counts_as_what_it_takes(wasm: Bench) -> None:
    body = "with open('s', 'wb') as file:\n    file.truncate(1 << 40)\nawait issue(op='later', turns=9)\n"
    assert run(wasm, body + "return os.path.getsize('s')") == 1 << 40


def test_a_program_that_declares_no_files_has_none_and_hears_how(wasm: Bench) -> None:
    with pytest.raises(ProgramError, match="FileNotFoundError") as caught:
        run(wasm, "open('notes.txt', 'w')", Limits())
    assert "limits = { max_file_bytes = 1_000_000 }" in caught.value.hint


HELD_UP = {
    "a poll": "import select\nselect.select([], [], [], 60)",
    "a clock": """
import importlib.util
fresh = importlib.util.find_spec("time")
time = importlib.util.module_from_spec(fresh)
fresh.loader.exec_module(time)
time.sleep(60)  # the interpreter's own, and not the runner's
""",
    "a disk": "file = open('x', 'w')\nos.fsync(file.fileno())",
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', 9), 1)",
    "a listener": "import socket\ns = socket.socket()\ns.settimeout(None)\ns.accept()",
    "a datagram": "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', 9))",
    "a name": "import socket\nsocket.getaddrinfo('localhost', 80)",
}


@pytest.mark.parametrize("what", HELD_UP)
@pytest.mark.parametrize("limits", [Limits(), WITH_FILES], ids=["without files", "with files"])
def test_nobody_is_held_up_by_what_a_program_waits_for_outside_asyncio(wasm: Bench, what: str, limits: Limits) -> None:
    with pytest.raises(ProgramError, match=r"(waited outside asyncio|^\w+: )"):
        run(wasm, HELD_UP[what], limits)


@pytest.mark.parametrize(
    "body",
    ["while True: open('x', 'wb').write(bytes(1 << 16))", "await issue(op='never')", "await asyncio.sleep(3600)"],
)
def test_a_run_that_is_cancelled_leaves_no_file(wasm: Bench, body: str, folder: Path) -> None:
    async def scenario(sandbox: Any) -> None:
        guest = FakeGuest()
        source = program("open('first', 'w').write('x')\nprint('here')\n" + body)
        run = asyncio.create_task(sandbox.run(source, "p.py", "{}", guest, WITH_FILES))
        await guest.printed.wait()
        assert [path.name for path in folder.rglob("first")] == ["first"]  # noqa: ASYNC240 (a few files)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    wasm.drive(scenario)


def test_measuring_follows_no_link_and_stops_at_its_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "outside").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(private_files, "MAX_ENTRIES", 5)
    folders = FileFolders()
    files = folders.new(5 * private_files.ENTRY_BYTES)
    (files.folder / "link").symlink_to(folder / "outside")
    (files.folder / "loop").symlink_to(files.folder)
    (files.folder / "deep").mkdir()
    for number in range(2):
        (files.folder / "deep" / str(number)).touch()
    files.check()
    (files.folder / "deep" / "2").touch()
    with pytest.raises(LimitExceeded, match="more than 5 files"):
        files.check()
    files.remove()
    folders.close()
    assert (folder / "outside").exists()


def test_folders_however_deep_they_lie_are_deleted_and_the_next_run_gets_its_own(wasm: Bench) -> None:
    deep = program("import os\npath = ''\nfor _ in range(1000):\n    path += 'd/'; os.mkdir(path)\nreturn 1")

    async def scenario(sandbox: Any) -> list[str]:
        limits = Limits(max_file_bytes=1 << 30)
        endings = await asyncio.gather(
            *(sandbox.run(deep, "p.py", "{}", FakeGuest(), limits) for _ in range(3)), return_exceptions=True
        )
        assert all(one == "1" or isinstance(one, LimitExceeded) for one in endings)
        source = program("import os\nopen('x', 'w').write('x')\nreturn os.listdir('/')")
        return [await sandbox.run(source, "p.py", "{}", FakeGuest(), WITH_FILES) for _ in range(12)]

    assert wasm.drive(scenario) == ['["x"]'] * 12


def test_what_cannot_be_measured_ends_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = FileFolders()
    files = folders.new(1 << 20)
    (files.folder / "a").mkdir()

    really_open = os.open

    def no_more(path: Any, flags: int, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise OSError(24, "Too many open files")
        return really_open(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(private_files.os, "open", no_more)
        with pytest.raises(Unavailable, match="cannot be measured: Too many open files"):
            files.check()
    folders.close()


def test_deleting_needs_no_path_to_what_lies_deep(folder: Path) -> None:
    folders = FileFolders()
    files = folders.new(1 << 20)
    inside = os.open(files.folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 50, dir_fd=inside)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inside))
        above, inside = inside, os.open("d" * 50, os.O_RDONLY, dir_fd=inside)
        os.close(above)
    os.close(inside)
    files.remove()
    assert not files.folder.exists()
    folders.close()


KILLED = """
import os, signal, tempfile
from loopwright.runtime.sandboxes.private_files import FileFolders
files = FileFolders().new(1 << 20)
(files.folder / "secret").write_text("left")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_server_left_is_deleted_by_the_next_and_nothing_else(folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(folder)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = folder.glob("loopwright-files-*")
    assert [path.name for path in folder.rglob("secret")] == ["secret"]
    foreign = [folder / "loopwright-files-mine", folder / "loopwright-files-link"]
    foreign[0].mkdir()  # without a lock: nobody knows whose it is
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "lock").touch()
    foreign[1].symlink_to(folder / "elsewhere")
    living = FileFolders()
    files = living.new(1 << 20)
    assert not left.exists()
    next_one = FileFolders()
    next_one.new(1 << 20)
    assert files.folder.exists()  # its lock is held, though by the same process
    assert all(path.exists() for path in foreign)
    assert (folder / "elsewhere" / "lock").exists()
    for one in (living, next_one):
        one.close()
    foreign[0].rmdir()
    foreign[1].unlink()
