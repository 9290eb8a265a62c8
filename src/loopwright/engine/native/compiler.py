"""Compiles the kernels for one instruction set. Never chooses one, never loads what it made.

Imports nothing but the standard library: `build` compiles on first use with it, and setup.py, which runs where none of
our dependencies are, for a wheel.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias, get_args

InstructionSet: TypeAlias = Literal["avx512_bf16", "avx512", "avx2"]
INSTRUCTION_SETS: tuple[InstructionSet, ...] = get_args(InstructionSet)  # the best first

FLAGS: dict[InstructionSet, tuple[str, ...]] = {
    "avx512_bf16": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512bf16", "avx2", "fma", "f16c"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
}
"""What a processor must have, and a compiler may use."""

COMPILERS = ("g++", "clang++", "c++")
SOURCES = Path(__file__).parent


class CompilerError(Exception):
    """The compiler refused: its first error, with its name and the instruction set."""


def find_compiler() -> str | None:
    """$CXX, or the first C++ compiler that is installed."""
    chosen = os.environ.get("CXX")
    return next((one for one in ([chosen] if chosen else COMPILERS) if shutil.which(one)), None)


def shipped_name(instructions: InstructionSet) -> str:
    """The name of the compiled kernels beside their sources in a wheel."""
    return f"kernels-{instructions}.so"


def source_files() -> list[Path]:
    """All of the kernels' sources, in a fixed order."""
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])


def compile_kernels(compiler: str, instructions: InstructionSet, target: Path) -> None:
    """Compiles to `target`, which appears whole or not at all. Raises CompilerError."""
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so", delete=False) as file:
        draft = Path(file.name)
    flags = [f"-m{flag}" for flag in FLAGS[instructions]]
    command = [compiler, "-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi", *flags]
    done = subprocess.run(
        [*command, str(SOURCES / "decoder.cpp"), "-o", str(draft)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        draft.unlink()
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise CompilerError(f"{compiler} could not compile the kernels for {instructions}: {first}")
    draft.chmod(0o755)
    draft.rename(target)
