"""The wheel: what it carries, for which machines it says it is, and that it computes without a compiler.

`make wheel-test` installs it for real, with all that it depends on, and serves from it.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from make_wheel import ROOT, make_wheel

from loopwright.engine.native.build import PROCESSOR, processor_sets
from loopwright.engine.native.compiler import INSTRUCTION_SETS, find_compiler, shipped_name

NEWEST_GLIBC = (2, 28)  # torch's own wheels need it
KERNELS = {f"loopwright/engine/native/{shipped_name(one)}" for one in INSTRUCTION_SETS}

compiled = pytest.mark.skipif(
    not (find_compiler() and (platform.system(), platform.machine()) == ("Linux", "x86_64")),
    reason="the kernels cannot be compiled here",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def sources() -> set[str]:
    package = {path.relative_to(ROOT / "src") for path in (ROOT / "src/loopwright").rglob("*")}
    programs = {Path("loopwright") / path.relative_to(ROOT) for path in (ROOT / "programs").glob("*.py")}
    return {str(path) for path in package | programs if path.suffix and "__pycache__" not in path.parts}


def carried(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}


@compiled
def test_it_carries_every_file_of_the_package_the_programs_and_the_kernels(wheel: Path):
    assert carried(wheel) == sources() | KERNELS


@compiled
def test_it_is_for_every_python_on_each_linux_that_torch_runs_on(wheel: Path):
    found = re.fullmatch(r"loopwright-[\d.]+-py3-none-manylinux_(\d+)_(\d+)_x86_64\.whl", wheel.name)
    assert found, wheel.name
    assert tuple(map(int, found.groups())) <= NEWEST_GLIBC


@compiled
@pytest.mark.skipif(not processor_sets(), reason="the processor has none of the instruction sets")
def test_its_kernels_are_taken_where_there_is_no_compiler(unpacked: Path, tmp_path: Path):
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(unpacked), "LOOPWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    kept = {name: os.environ[name] for name in (PROCESSOR,) if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "loopwright", "doctor", "--json"],
        cwd=tmp_path,
        env=environment | kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {one["what"]: one["found"] for one in json.loads(done.stdout)}
    assert found["compiler"] == "none"
    assert found["engine"].startswith(f"native kernels for {processor_sets()[0]}, ")
    assert ", from the wheel;" in found["engine"]
    assert not (tmp_path / "cache" / "kernels").exists()


@compiled
@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
def test_kernels_have_no_instruction_beyond_their_set(unpacked: Path):
    def code(name: str) -> str:
        path = unpacked / "loopwright/engine/native" / shipped_name(name)
        return subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, check=True).stdout

    beyond_avx2 = re.compile(r"%zmm|%k[1-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b")
    assert not beyond_avx2.search(code("avx2"))
    beyond_avx512 = re.compile(r"\bvdpbf16ps\b|\bvcvtne2?ps2bf16\b|\bvpdpbusd\b")
    avx512 = code("avx512")
    assert "%zmm" in avx512
    assert not beyond_avx512.search(avx512)
    assert beyond_avx512.search(code("avx512_bf16"))


def test_without_a_compiler_it_is_for_any_machine_and_carries_the_sources_alone(tmp_path: Path):
    wheel = make_wheel(tmp_path, {**os.environ, "CXX": "no-compiler"})
    assert wheel.name.endswith("-py3-none-any.whl")
    assert carried(wheel) == sources()
