"""Runs the tests of this folder in processes side by side, since most of their time is compiling kernels.

Never more of the CPU for each than two threads: the float32 reference would take all for itself. Prints how each part
went, and the whole output of those that failed. The parts are every test once; test_gpu_report shows it.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PARTS = (
    ("test_device_parity.py", "prompts_masks"),
    ("test_device_parity.py", "decode_steps_of_any_size"),
    ("test_device_parity.py", "draws_of_graphs"),
    ("test_device_parity.py", "not (prompts_masks or decode_steps_of_any_size or draws_of_graphs)"),
    ("test_device_keeps_going.py", ""),
    ("test_own_bits.py", "int4 or Gemma"),
    ("test_own_bits.py", "not (int4 or Gemma)"),
    ("test_real_weights.py", ""),
    ("test_two_gpus.py", ""),
)
"""File, and what `pytest -k` chooses of it. The slowest first."""

LIMIT_S = 300.0


def words(file: str, chosen: str) -> list[str]:
    """The command of one part."""
    common = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(FOLDER.parents[1])]
    confined = [*common, "--confcutdir", str(FOLDER), str(FOLDER / file)]
    return [sys.executable, "-m", "pytest", *confined, *(["-k", chosen] if chosen else [])]


def main() -> int:
    """The exit status: 0 if every part passed."""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    running = [
        subprocess.Popen(words(*part), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for part in PARTS
    ]
    is_well = True
    for (file, chosen), process in zip(PARTS, running, strict=True):
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nended after {LIMIT_S:.0f} s"
        passed = process.returncode == 0
        is_well &= passed
        last = output.strip().rpartition("\n")[2]
        sys.stdout.write((f"{file} {chosen}: {last}" if passed else f"{file} {chosen}: FAILED\n{output}") + "\n")
        sys.stdout.flush()
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
