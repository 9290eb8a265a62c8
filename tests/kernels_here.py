"""Whether this machine can have the native kernels: tests of what they compute are skipped where it cannot."""

import pytest

from loopwright.engine.native.build import processor_sets
from loopwright.engine.native.compiler import find_compiler

needs_kernels = pytest.mark.skipif(
    not (processor_sets() and find_compiler()),
    reason="the kernels cannot be had here: no instruction set that they know, or no C++ compiler",
)
