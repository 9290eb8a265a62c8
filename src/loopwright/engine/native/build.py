"""Finds or compiles the kernels for this machine's instruction set. Never runs them. Called when a model is loaded.

A wheel for Linux x86-64 carries them compiled; from source they are compiled on first use, when a compiler is there,
and kept in the cache directory. Where neither is possible, `load_kernels` says why, and torch computes.
"""

import ctypes
import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from loopwright.core.errors import BadRequest, Unavailable
from loopwright.engine.native.compiler import (
    COMPILERS,
    FLAGS,
    INSTRUCTION_SETS,
    SOURCES,
    CompilerError,
    InstructionSet,
    compile_kernels,
    find_compiler,
    shipped_name,
    source_files,
)

PROCESSOR = "LOOPWRIGHT_PROCESSOR"
"""A variable of the environment: the best instruction set that the processor is taken to have, or none."""

_CPUINFO_NAMES = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}


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
        raise Unavailable(f"{_processor()} has none of the instruction sets {', '.join(INSTRUCTION_SETS)}")
    if instructions is not None and instructions not in known:
        raise BadRequest(
            f"{_processor()} has {', '.join(known)}; {instructions!r} is not among them", field="instructions"
        )
    return _load(cache_dir, instructions or known[0])


def processor_sets() -> tuple[InstructionSet, ...]:
    """Which of the sets this processor has, the best first; no better ones than $LOOPWRIGHT_PROCESSOR says. Raises
    BadRequest when that is no set."""
    best = os.environ.get(PROCESSOR) or INSTRUCTION_SETS[0]
    if best not in (*INSTRUCTION_SETS, "none"):
        raise BadRequest(f"{PROCESSOR} is {best!r}; it may be {', '.join(INSTRUCTION_SETS)} or none", field=PROCESSOR)
    tried = () if best == "none" else INSTRUCTION_SETS[INSTRUCTION_SETS.index(best) :]
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
    return tuple(one for one in tried if all(_CPUINFO_NAMES.get(flag, flag) in flags for flag in FLAGS[one]))


def _processor() -> str:
    limit = os.environ.get(PROCESSOR)
    return f"the processor, which {PROCESSOR} says is {limit}," if limit else "the processor"


@cache
def _load(cache_dir: Path, instructions: InstructionSet) -> Kernels:
    shipped, why_not = SOURCES / shipped_name(instructions), "no compiled kernels in the package"
    if shipped.exists():
        try:
            return Kernels(_bound(shipped), instructions, "from the wheel")
        except Unavailable as error:
            why_not = str(error)
    built, compiler = _build(cache_dir, instructions, why_not)
    return Kernels(_bound(built), instructions, f"compiled by {compiler}")


def _build(cache_dir: Path, instructions: InstructionSet, why_needed: str) -> tuple[Path, str]:
    compiler = find_compiler()
    if compiler is None:
        tried = os.environ.get("CXX") or ", ".join(COMPILERS)
        raise Unavailable(
            f"there is no C++ compiler here ({tried}) and {why_needed}",
            hint="install g++, or a wheel for Linux x86-64; until then torch computes",
        )
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    sources = [text for path in source_files() for text in (path.name, path.read_text())]
    digest = hashlib.sha256("\0".join([version, instructions, *sources]).encode())
    target = cache_dir / "kernels" / f"{instructions}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # what lies there is loaded as code
        try:
            compile_kernels(compiler, instructions, target)
        except CompilerError as error:
            raise Unavailable(str(error)) from error
    return target, compiler


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
    real = ctypes.c_float
    library.embed.argtypes, library.embed.restype = [address, address, number, real, address], None
    library.normalize_all.argtypes = [address, number, address, number, real, address]
    library.normalize_all.restype = None
    library.answer_rows.argtypes = [address, number, number, address, address, address]
    library.answer_rows.restype = None
    return library
