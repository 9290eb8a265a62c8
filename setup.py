"""Puts compiled kernels into a wheel that is built on Linux x86-64 with a C++ compiler. pyproject.toml has the rest.

Elsewhere, and for an editable installation, nothing is compiled: then the kernels are compiled on first use, or torch
computes. What is compiled, and how, is in src/loopwright/engine/native/compiler.py, which is read without our package.
"""

import importlib.util
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
COMPILER = ROOT / "src/loopwright/engine/native/compiler.py"


def compiler_module() -> Any:  # noqa: ANN401 (a module has what is in it)
    spec = importlib.util.spec_from_file_location("kernel_compiler", COMPILER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compiler = compiler_module()
NAME = compiler.find_compiler() if (platform.system(), platform.machine()) == ("Linux", "x86_64") else None


class BuildWithKernels(build_py):
    """Also compiles the kernels, and puts the programs of the repository beside the code."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib, "loopwright")
        shutil.copytree(
            ROOT / "programs", package / "programs", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
        if NAME:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda one: self._compile(one, package / "engine/native"), compiler.INSTRUCTION_SETS))

    def _compile(self, instructions: str, folder: Path) -> None:
        try:
            compiler.compile_kernels(NAME, instructions, folder / compiler.shipped_name(instructions))
        except compiler.CompilerError as error:  # an old compiler: whoever needs these will compile them, or use torch
            sys.stderr.write(f"warning: the wheel will not have these kernels: {error}\n")


class Carrier(Distribution):
    """What has compiled code goes to the platform's folder of a wheel, not to that of pure Python."""

    def has_ext_modules(self) -> bool:
        return NAME is not None


class WheelForPlatform(bdist_wheel):
    """A wheel with kernels is for this platform, and for every Python: nothing in it is linked to one."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, tag = super().get_tag()
        return ("py3", "none", tag) if NAME else (python, abi, tag)


setup(distclass=Carrier, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelForPlatform})
