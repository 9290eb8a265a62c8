"""Runs the tests of this folder in processes side by side, since most of their time is compiling kernels.

Never more of the CPU for each than two threads: the float32 reference would take all for itself. Prints how each part
went, and the whole output of those that failed. The parts are every test once, in turn on each GPU that there is;
test_gpu_report shows it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
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
    ("test_device_control.py", ""),
    ("test_real_weights.py", ""),
)
"""File, and what `pytest -k` chooses of it. The slowest first."""

ALONE = (("test_two_gpus.py", ""),)
"""Those that take all GPUs."""

LIMIT_S = 160.0


def words(file: str, chosen: str) -> list[str]:
    """The command of one part."""
    common = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(FOLDER.parents[1])]
    confined = [*common, "--confcutdir", str(FOLDER), str(FOLDER / file)]
    return [sys.executable, "-m", "pytest", *confined, *(["-k", chosen] if chosen else [])]


def run_parts(parts: Sequence[tuple[str, str]], num_gpus: int, limit_s: float = LIMIT_S) -> tuple[bool, list[str]]:
    """Whether all passed, and a line for each. With several GPUs each part sees one, if it is not the only part."""
    ends_s = time.monotonic() + limit_s
    running = []
    for number, part in enumerate(parts):
        environment = os.environ | {"OMP_NUM_THREADS": "2"}
        if num_gpus > 1 and len(parts) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(number % num_gpus)
        running.append(
            subprocess.Popen(words(*part), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    is_well, said = True, []
    try:
        for (file, chosen), process in zip(parts, running, strict=True):
            try:
                output, _ = process.communicate(timeout=max(1.0, ends_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0] + f"\nended after {limit_s:.0f} s"
            passed = process.returncode == 0
            is_well &= passed
            said.append(f"{file} {chosen}: {'' if passed else 'FAILED, '}{output.strip().rpartition(chr(10))[2]}")
            sys.stdout.write((said[-1] if passed else f"{said[-1]}\n{output}") + "\n")
            sys.stdout.flush()
    finally:
        for process in running:
            process.kill()
    return is_well, said


def main() -> int:
    """The exit status: 0 if every part passed."""
    import torch  # noqa: PLC0415 (the parts import it anew)

    num_gpus = torch.cuda.device_count()
    is_well = [run_parts(parts, num_gpus)[0] for parts in (PARTS, ALONE)]
    return 0 if all(is_well) else 1


if __name__ == "__main__":
    sys.exit(main())
