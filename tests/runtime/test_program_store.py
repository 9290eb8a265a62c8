"""Deployed programs on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.core.errors import NotFound, PermissionDenied, Unavailable
from loopwright.core.ids import ONE_TENANT, TenantId
from loopwright.core.runs import Version
from loopwright.runtime.program import read_program
from loopwright.runtime.program_store import ProgramStore

SCRIPT = """
import sys
from pathlib import Path
from loopwright.runtime.program import read_program
from loopwright.runtime.program_store import ProgramStore
folder = Path(sys.argv[1])
ProgramStore(folder).put("greek", read_program("async def main(): return '\\u03b1'\\n", "greek.py"))
assert ProgramStore(folder).get("greek").source == "async def main(): return '\\u03b1'\\n"
"""


def test_a_program_is_kept_as_it_is_whatever_the_locale(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "greek.py").read_bytes() == "async def main(): return '\u03b1'\n".encode()


FIRST, SECOND = (read_program(f"async def main(): return {number}\n", "agent.py") for number in (1, 2))
ANN, BOB = TenantId("ann"), TenantId("bob")


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_program_is_replaced_by_its_own_tenant_alone(tmp_path: Path, is_started_again: bool) -> None:
    store = ProgramStore(tmp_path)
    store.put("agent", FIRST, ANN)
    if is_started_again:
        store = ProgramStore(tmp_path)
    with pytest.raises(PermissionDenied, match=r"^name: the program 'agent' is another tenant's") as caught:
        store.put("agent", SECOND, BOB)
    assert caught.value.field == "name"
    assert ProgramStore(tmp_path).get("agent").source == store.get("agent").source == FIRST.source
    store.put("agent", SECOND, ANN)
    assert ProgramStore(tmp_path).get("agent").source == SECOND.source


def test_a_program_of_nobody_is_whose_replaces_it_first_and_without_keys_anybody_replaces_any(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(FIRST.source)  # of a version that knew no owners
    store = ProgramStore(tmp_path)
    store.put("agent", SECOND, ANN)
    with pytest.raises(PermissionDenied):
        store.check_owner("agent", BOB)
    store.put("agent", FIRST)  # the server has no keys any more
    ProgramStore(tmp_path).put("agent", SECOND, BOB)
    with pytest.raises(PermissionDenied):
        ProgramStore(tmp_path).put("agent", FIRST, ANN)


@pytest.mark.parametrize("tenant", [ANN, ONE_TENANT])
def test_a_program_is_removed_by_its_own_tenant_alone_and_its_name_is_free(tmp_path: Path, tenant: TenantId) -> None:
    store = ProgramStore(tmp_path)
    store.put("agent", FIRST, ANN)
    other = ProgramStore(tmp_path)  # of another process, which removes it as well
    with pytest.raises(PermissionDenied, match=r"^name: the program 'agent' is another tenant's"):
        store.remove("agent", BOB)
    assert store.get("agent").source == ProgramStore(tmp_path).get("agent").source == FIRST.source
    for one in (store, other):
        one.remove("agent", tenant)
        with pytest.raises(NotFound, match="no program 'agent' is deployed"):
            one.remove("agent", tenant)
        assert one.infos() == ()
    assert list(tmp_path.iterdir()) == []
    store.put("agent", SECOND, BOB)
    with pytest.raises(PermissionDenied):
        store.put("agent", FIRST, ANN)


def test_a_program_that_cannot_be_removed_from_the_disk_stays(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    store.put("agent", FIRST)
    (tmp_path / "agent.py").unlink()
    (tmp_path / "agent.py").mkdir()
    with pytest.raises(Unavailable, match=r"cannot remove .*agent\.py: "):
        store.remove("agent")
    assert store.get("agent").source == FIRST.source


def test_a_program_tells_its_file_and_what_it_replaced_and_a_store_that_opens_knows_the_file(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    source = '# /// program\n# permissions = { tools = ["search"] }\n# ///\nasync def main(): ...\n'
    store.put("my-agent", read_program(source, "my_agent.py"), ANN)
    info = store.info("my-agent")
    assert (info.filename, info.permissions, info.replaced, info.tenant) == (
        "my_agent.py", {"tools": ("search",)}, None, ANN
    )  # fmt: skip
    assert ProgramStore(tmp_path).info("my-agent") == info
    store.put("my-agent", FIRST, ANN)
    assert store.info("my-agent").replaced == Version(info.source_sha256, "my_agent.py")
    store.remove("my-agent", ANN)
    store.put("my-agent", FIRST, ANN)
    assert store.info("my-agent").replaced is None


@pytest.mark.parametrize(
    ("filename", "source", "why"),
    [
        ("My Agent.py", FIRST.source, "'My Agent' cannot name a program"),
        ("agent.py", "def main(): ...", "agent.py, line 1: main is not async"),
    ],
)
def test_a_file_that_is_no_program_is_left_out_and_the_log_says_why(
    filename: str, source: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / filename).write_text(source)
    assert ProgramStore(tmp_path).infos() == ()
    assert [one.told for one in caplog.records] == [{"file": str(tmp_path / filename), "why": why}]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("hello_world", "did you mean hello-world?"),
        ("hello-wrold", "did you mean hello-world?"),
        ("zzz", "loopwright deploy FILE.py; GET /v1/programs lists those that are"),
    ],
)
def test_a_name_that_is_not_deployed_is_answered_with_the_nearest(name: str, hint: str) -> None:
    store = ProgramStore(None)
    store.put("hello-world", FIRST)
    with pytest.raises(NotFound) as caught:
        store.get(name)
    assert (caught.value.message, caught.value.hint) == (f"no program {name!r} is deployed", hint)
