"""Deployed programs on disk."""

import os
import subprocess
import sys
from pathlib import Path

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
