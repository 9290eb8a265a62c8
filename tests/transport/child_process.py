"""A Python process that can import the fakes of this folder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def python_process(source: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs the source; killed at the latest when the block ends."""
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    process = subprocess.Popen([sys.executable, "-c", source, *arguments], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
