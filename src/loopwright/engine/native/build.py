"""Finds or compiles the kernels for this machine's instruction set. Never runs them. Called when a model is loaded.

A wheel for Linux x86-64 carries them compiled; from source they are compiled on first use, when a compiler is there,
and kept in the cache directory. Where neither is possible, `load_kernels` says why, and torch computes.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from loopwright.core.errors import BadRequest, Unavailable

InstructionSet: TypeAlias = Literal["avx512_bf16", "avx512", "avx2"]
INSTRUCTION_SETS: tuple[InstructionSet, ...] = get_args(InstructionSet)  # the best first

_FLAGS: dict[InstructionSet, tuple[str, ...]] = {
    "avx512_bf16": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512bf16", "avx2", "fma", "f16c"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
}
_CPUINFO_NAMES = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}
_COMPILERS = ("g++", "clang++", "c++")
_SOURCES = Path(__file__).parent
_FILES = ("decoder.cpp", "attention.h", "matrices.h", "slices.h", "structs.h", "team.h", "vectors.h")


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """The compiled library. `origin` says where it came from."""

    library: ctypes.CDLL
    instructions: InstructionSet
    origin: str


def load_kernels(cache_dir: Path, instructions: InstructionSet | None = None) -> Kernels:
    """The kernels for `instructions`, the best that the processor has unless given.

    Raises Unavailable, which says why there are none, and BadRequest for instructions that the processor lacks."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unavailable(
            f"the native kernels are for Linux on x86-64; this is {platform.system()} on {platform.machine()}"
        )
    known = processor_sets()
    if not known:
        raise Unavailable("the processor has none of the instruction sets " + ", ".join(INSTRUCTION_SETS))
    if instructions is not None and instructions not in known:
        raise BadRequest(
            f"the processor has {', '.join(known)}; {instructions!r} is not among them", field="instructions"
        )
    return _load(cache_dir, instructions or known[0])


def processor_sets() -> tuple[InstructionSet, ...]:
    """Which of the sets this processor has, the best first."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
    return tuple(
        one for one in INSTRUCTION_SETS if all(_CPUINFO_NAMES.get(flag, flag) in flags for flag in _FLAGS[one])
    )


def find_compiler() -> str | None:
    """$CXX, or the first C++ compiler that is installed."""
    chosen = os.environ.get("CXX")
    return next((one for one in ([chosen] if chosen else _COMPILERS) if shutil.which(one)), None)


@cache
def _load(cache_dir: Path, instructions: InstructionSet) -> Kernels:
    shipped = _SOURCES / f"kernels-{instructions}.so"
    if shipped.exists():
        return Kernels(_bound(shipped), instructions, f"shipped as {shipped.name}")
    built, compiler = _build(cache_dir, instructions)
    return Kernels(_bound(built), instructions, f"compiled by {compiler}")


def _build(cache_dir: Path, instructions: InstructionSet) -> tuple[Path, str]:
    compiler = find_compiler()
    if compiler is None:
        raise Unavailable(
            f"there is no C++ compiler here ({', '.join(_COMPILERS)}) and no compiled kernels in the package",
            hint="install g++, or a wheel for Linux x86-64; until then torch computes",
        )
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256(
        "\0".join([version, instructions, *((_SOURCES / name).read_text() for name in _FILES)]).encode()
    )
    target = cache_dir / "kernels" / f"{instructions}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # what lies there is loaded as code
        compile_kernels(compiler, instructions, target)
    return target, compiler


def compile_kernels(compiler: str, instructions: InstructionSet, target: Path) -> None:
    """Compiles to `target`, which appears whole or not at all. Raises Unavailable with the compiler's first error."""
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so", delete=False) as file:
        draft = Path(file.name)
    flags = [f"-m{flag}" for flag in _FLAGS[instructions]]
    command = [compiler, "-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi", *flags]
    done = subprocess.run(
        [*command, str(_SOURCES / "decoder.cpp"), "-o", str(draft)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        draft.unlink()
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["no message"]
        )
        raise Unavailable(f"{compiler} could not compile the kernels for {instructions}: {lines[0]}")
    draft.rename(target)


def _bound(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"the kernels cannot be loaded: {error}") from error
    address, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    library.workspace_new.argtypes, library.workspace_new.restype = [number, size], address
    library.workspace_bytes.argtypes, library.workspace_bytes.restype = [address], size
    library.workspace_free.argtypes, library.workspace_free.restype = [address], None
    library.forward.argtypes, library.forward.restype = [address, address, address, address], None
    library.logits.argtypes, library.logits.restype = [address, address, number, address, address], None
    return library
