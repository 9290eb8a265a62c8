"""`loopwright check` as a command: places that editors follow, JSON, the exit status, and the runner's own modules."""

import json
from pathlib import Path

import pytest

from command_rig import write_program
from loopwright.cli import main
from loopwright.cli.check import sandbox_modules
from loopwright.runtime.sandboxes.runner_build import runner_files
from loopwright.runtime.sandboxes.runner_modules import modules_file
from loopwright.weights import store

pytestmark = pytest.mark.wasm

WRONG = """import numpy
from loopwright import Context
async def main():
    await Context().generat()
"""


def test_each_finding_is_a_line_with_its_place_and_status_1(tmp_path: Path, capsys):
    path = write_program(tmp_path, WRONG)
    good = write_program(tmp_path, "import json\nasync def main(): ...\n", "good.py")
    assert main(["check", str(good), str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}:1:1: module: the sandbox has no module 'numpy' "
        "(it has Python's standard library and loopwright; a program is one file)",
        f"{path}:4:21: name: Context has no 'generat' (did you mean 'generate'?)",
    ]


def test_json_is_one_list_and_nothing_wrong_is_status_0(tmp_path: Path, capsys):
    path = write_program(tmp_path, WRONG)
    assert main(["check", "--json", str(path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [(row["file"], row["line"], row["column"], row["code"]) for row in rows] == [
        (str(path), 1, 1, "module"),
        (str(path), 4, 21, "name"),
    ]
    good = write_program(tmp_path, "async def main(): ...\n")
    assert main(["check", "--json", str(good)]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_the_modules_are_those_that_the_runner_has(tmp_path: Path):
    kept = modules_file(runner_files(store.cache_folder() / "runner").component)
    kept.unlink(missing_ok=True)
    modules = sandbox_modules(store.no_progress)
    assert {"asyncio", "json", "xml.etree.ElementTree", "loopwright.sdk.http"} <= modules
    assert not modules & {"distutils", "tkinter", "numpy", "loopwright.cli", "runner"}  # gone, no screen, not inside
    assert frozenset(json.loads(kept.read_text())) == modules == sandbox_modules(store.no_progress)


ASKING = """# /// program
# permissions = { tools = ["weather", "news", "cal.add", "mail.*"] }
# limits = { seconds = 60, max_pages = 9 }
# ///
async def main(): ...
"""


def test_what_a_configured_server_would_not_give_is_told(tmp_path: Path, capsys):
    path = write_program(tmp_path, ASKING)
    config = tmp_path / "server.toml"
    config.write_text(
        "[runtime.caps]\nseconds = 20\nmemory_mb = 1\n"
        "[tools.http.weather]\nurl = 'http://a.example/'\ndescription = 'x'\n"
        "[tools.mcp.cal]\nurl = 'http://b.example/'\n"
    )
    assert main(["check", "--config", str(config), str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}:2:1: server: permissions.tools has 'mail.*'; this server has no MCP server 'mail' "
        "(it has cal; [tools] of its configuration lists them)",
        f"{path}:2:1: server: permissions.tools has 'news'; this server has no tool 'news' "
        "(it has weather; [tools] of its configuration lists them)",
        f"{path}:3:1: server: limits.seconds is 60.0; on this server it is 20.0 "
        "(ask for less, or raise runtime.caps.seconds)",
    ]
    assert main(["check", str(path)]) == 0
