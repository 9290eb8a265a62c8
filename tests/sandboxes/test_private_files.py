"""Files of a program's own: what works, what nobody gets out of, where they end, and that they are gone afterwards."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from loopwright.core.errors import LimitExceeded, ProgramError
from loopwright.runtime.limits import Limits
from loopwright.runtime.sandboxes import private_files
from loopwright.runtime.sandboxes.private_files import PrivateFiles

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
    ],
)
def test_files_end_at_their_limit(wasm: Bench, body: str) -> None:
    with pytest.raises(LimitExceeded, match=r"(limit is 1048576|more than 1024 files)") as caught:
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
    files = PrivateFiles(5 * private_files.ENTRY_BYTES)
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
    assert (folder / "outside").exists()
