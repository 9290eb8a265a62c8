"""Decodes a GGUF file in a process beside this one, while this one imports torch. Never imports torch itself.

Both take a second of a core, and threads cannot do them side by side, because imports hold the GIL. Nobody depends on
it: what is not here when a model is loaded, the loader decodes by itself. Started by compose, read by the loader.
"""

import os
import signal
from collections.abc import Mapping
from math import prod
from mmap import mmap
from threading import active_count
from typing import Final

import numpy as np

from loopwright.engine.dequantize import Bytes, Floats, dequantize
from loopwright.weights.gguf import GgufFile, TensorInfo

MAX_FILE_BYTES: Final = 512 << 20  # beyond that torch's import is no longer what one waits for


class DecodedAhead:
    """One file, and its large tensors in float32 when they are done. Smaller ones are not worth a mapping."""

    def __init__(self, file: GgufFile, min_elements: int = 1 << 16) -> None:
        """Forks. Raises OSError when the machine cannot."""
        self.file = file
        infos = [info for info in file.tensors.values() if prod(info.shape) >= min_elements]
        self._arrays = {info.name: _shared_floats(prod(info.shape)) for info in infos}
        self._pid = os.fork()
        if not self._pid:
            self._decode_and_exit(infos)

    def arrays(self) -> Mapping[str, Floats]:
        """Every large tensor of the file by name, flat, when all are done; nothing when one could not be decoded. Asked
        once: they are handed over, and not kept here."""
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # whoever started us ignores SIGCHLD, and so do we: how it ended is not kept
            return {}
        arrays, self._arrays = self._arrays, {}  # half a gigabyte is not kept for longer than its reader keeps it
        return arrays if status == 0 else {}

    def _decode_and_exit(self, infos: list[TensorInfo]) -> None:
        """Ends without a word: what is wrong with a tensor is found, and said, by the loader."""
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            data: Bytes = np.memmap(self.file.path, np.uint8, mode="r")
            for info in infos:
                blocks = data[info.offset : info.offset + info.nbytes]
                dequantize(info.name, info.kind, blocks, self._arrays[info.name])
            status = 0
        finally:
            os._exit(status)


def can_decode_ahead(file: GgufFile, num_cores: int) -> bool:
    """Whether it helps and is safe: on a core of its own, and with no other thread whose locks a fork would copy."""
    return num_cores > 1 and active_count() == 1 and hasattr(os, "fork") and file.path.stat().st_size <= MAX_FILE_BYTES


def _shared_floats(num_elements: int) -> Floats:
    return np.frombuffer(mmap(-1, 4 * num_elements), np.float32)
