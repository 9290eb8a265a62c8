"""The folder of a server's sockets: gone when its owner is, however that ended."""

import tempfile
from pathlib import Path

import pytest
from child_process import python_process

from command_rig import eventually
from loopwright.transport.addresses import socket_folder

OWNER = """
import sys, time
from pathlib import Path
from loopwright.transport.addresses import socket_folder
with socket_folder() as folder:
    (folder / "socket").touch()
    said = Path(sys.argv[1])
    said.with_suffix(".part").write_text(str(folder))
    said.with_suffix(".part").rename(said)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_owner_left_goes_when_the_next_one_starts_and_a_living_ones_stays(temporary: Path) -> None:
    foreign = temporary / "loopwright-of-somebody-else"
    foreign.mkdir()
    said = [temporary / "killed", temporary / "living"]
    with python_process(OWNER, str(said[0])) as killed, python_process(OWNER, str(said[1])):
        eventually(lambda: all(file.exists() for file in said))
        stale, held = (Path(file.read_text()) for file in said)
        killed.kill()
        killed.wait()
        assert (stale / "socket").exists()
        with socket_folder() as mine:
            assert not stale.exists()
            assert (held / "socket").exists()
            assert foreign.exists()
            with socket_folder() as another:
                assert mine.exists()
                assert another.exists()
        assert not mine.exists()
