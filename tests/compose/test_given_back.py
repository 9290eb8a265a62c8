"""Memory that only loading needed is given back, and nothing that anybody holds."""

import subprocess
import sys

import pytest

from loopwright.compose.given_back import code_of_files

MAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fe:00 77                         /usr/lib/libone.so
7f0000001000-7f0000003000 r-xp 00001000 fe:00 77                         /usr/lib/libone.so
7f0000003000-7f0000004000 rw-p 00003000 fe:00 77                         /usr/lib/libone.so
7f0000005000-7f0000006000 r-xp 00000000 00:00 0
7f0000007000-7f0000009000 r-xp 00000000 00:00 0                          [vdso]
7f000000a000-7f000000b000 r-xp 00000000 fe:00 78                         /a folder/libtwo.so
"""

AFTER_IMPORT = """
import re
import torch
from loopwright.compose.given_back import give_back_memory

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1])

before = of_files()
give_back_memory()
after = of_files()
assert torch.arange(6.0).view(2, 3).mm(torch.ones(3, 2)).tolist() == [[3, 3], [12, 12]]
print(before, after)
"""


def test_only_code_that_lies_in_a_file_is_given_back():
    assert code_of_files(MAPS) == [(0x7F0000001000, 0x7F0000003000), (0x7F000000A000, 0x7F000000B000)]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")
def test_code_that_ran_once_is_no_longer_resident_and_comes_back_when_it_runs_again():
    done = subprocess.run([sys.executable, "-c", AFTER_IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < before / 2
