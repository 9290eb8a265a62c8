"""Numbers on their way between host and device, which nobody waits for until they are read. Never computes.

Used by whatever runs between two launches: a copy from or to memory that is not pinned would hold the host up until the
device has done all that came before.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Landing: TypeAlias = Callable[[], NDArray[Any]]
"""What was copied to the host; to be asked once the copies are there."""


def to_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """A contiguous copy, which is under way when this returns."""
    return placed(torch.from_numpy(np.array(numbers, order="C")), device)


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's, likewise; on the CPU it is the very same."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class HostCopies:
    """Tensors that are copied to the host together. Made by one thread, read by any."""

    def __init__(self) -> None:
        self._ready: torch.cuda.Event | None = None

    def take(self, tensor: Tensor) -> Landing:
        """Copies what the tensor holds now."""
        if not tensor.is_cuda:
            copy = tensor.clone()
            return lambda: copy.numpy()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._ready = torch.cuda.Event() if self._ready is None else self._ready
        return lambda: host.numpy()

    def sent(self) -> None:
        """All copies are under way."""
        if self._ready is not None:
            self._ready.record()

    def wait(self) -> None:
        """Until all are there."""
        if self._ready is not None:
            self._ready.synchronize()
