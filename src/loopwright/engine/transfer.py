"""Numbers on their way between host and device, which nobody waits for until they are read. Never computes.

Used by whatever runs between two launches: a copy from or to memory that is not pinned would hold the host up until the
device has done all that came before.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MAX_PACKED_BYTES = 1 << 18

Landing: TypeAlias = Callable[[], NDArray[Any]]
"""What was copied to the host; to be asked once the copies are there."""


def to_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """A contiguous copy, which is under way when this returns."""
    return placed(torch.from_numpy(np.array(numbers, order="C")), device)


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host's, likewise; on the CPU it is the very same."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class SentNumbers:
    """Where int32 numbers wait that go to a device once a step, `size` at most: memory that is pinned once and for all,
    as that takes longer than all else of a small copy. A place is taken again after fifteen others, and no more than
    two steps are under way."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._places = torch.zeros(16, size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._written: NDArray[np.int32] = self._places.numpy()
        self._num_sent = 0

    def place_on(self, target: Tensor, numbers: NDArray[np.int32]) -> None:
        """Has a tensor of the device hold them. The copy is under way when this returns."""
        place, num = self._num_sent % len(self._written), len(numbers)
        self._num_sent += 1
        self._written[place, :num] = numbers
        target.copy_(self._places[place, :num], non_blocking=True)


class HostCopies:
    """Tensors that are copied to the host together, small ones as one. Made by one thread, read by any."""

    def __init__(self) -> None:
        self._ready: torch.cuda.Event | None = None
        self._small: list[Tensor] = []
        self._packed: Tensor | None = None  # on the host

    def take(self, tensor: Tensor) -> Landing:
        """Copies what the tensor holds. Nobody may write to it before all are `sent`."""
        if tensor.nbytes > _MAX_PACKED_BYTES:
            copy = self._copied(tensor)
            return lambda: copy.numpy()
        start, shape = sum(one.nbytes for one in self._small), tuple(tensor.shape)
        dtype, num_bytes = _numpy_dtype(tensor.dtype), tensor.nbytes
        self._small.append(tensor)

        def landed() -> NDArray[Any]:
            assert self._packed is not None
            own: NDArray[Any] = self._packed.numpy()[start : start + num_bytes].view(dtype).reshape(shape)
            return own

        return landed

    def sent(self) -> None:
        """All copies are under way."""
        if self._small:
            parts = [one.contiguous().view(-1).view(torch.uint8) for one in self._small]
            self._packed = self._copied(parts[0] if len(parts) == 1 else torch.cat(parts))
            self._small = []
        if self._ready is not None:
            self._ready.record()

    def wait(self) -> None:
        """Until all are there."""
        if self._ready is not None:
            self._ready.synchronize()

    def _copied(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._ready = torch.cuda.Event() if self._ready is None else self._ready
        return host


@lru_cache(maxsize=16)
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(str(dtype).removeprefix("torch."))
