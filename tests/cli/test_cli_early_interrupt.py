"""An interrupt before the command line has been imported is one line, as every other."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_rig import COMMAND, environment

STOP_AT = """
import sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.stdout.write("here")
            sys.stdout.flush()
            time.sleep(600)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("name", ["loopwright.cli", "argparse", "loopwright.core.errors"])
def test_an_interrupt_while_modules_are_imported_is_one_line(name: str, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(STOP_AT.format(name=name))
    path = environment().get("PYTHONPATH", "")
    process = subprocess.Popen(
        [COMMAND, "ps"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({"PYTHONPATH": f"{tmp_path}:{path}"}),
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == "here"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "loopwright: interrupted\n")


def test_the_package_gives_what_the_sdk_has_and_nothing_else():
    code = (
        "import sys, loopwright; assert 'loopwright.sdk' not in sys.modules\n"
        "from loopwright import Context, http, sdk\n"
        "assert (Context, http) == (sdk.Context, sdk.http) and loopwright.__all__ == sdk.__all__\n"
        "try: loopwright.nothing\nexcept AttributeError as error: print(error)\n"
        "exec('from loopwright import *'); print(tensor is sdk.tensor)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.splitlines() == ["module 'loopwright' has no attribute 'nothing'", "True"]
