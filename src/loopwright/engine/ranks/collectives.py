"""What the ranks of a model do together, through torch.distributed: gloo on CPUs, NCCL on GPUs. Never starts a process.

The groups are this module's own, not torch's global one, so a process may be in several. They meet in a file of a
private folder, and talk over the loopback device.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

_NCCL_DEFAULTS = {
    "NCCL_NVLS_ENABLE": "0",  # NVLink multicast needs the fabric manager's consent, and can wedge a shared machine
    "NCCL_SOCKET_IFNAME": "lo",  # all ranks are on one machine
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # a fault ends the group, not the process: the group watches by itself
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


_GATHERED_BYTES = 4 << 20
"""Up to so many from all others, a sum is what all have, gathered, and added up by each. On two H200 NCCL's own sum of
8 KB takes 16 µs, and gathering a little 7: docs/log.md."""


class Apart(Exception):
    """A collective failed: another rank is gone, or did not come in time. Who did so is known to whoever watches it."""


class Collectives:
    """One rank's end of a group. Implements loaded_model.Ranks; all of it raises Apart."""

    def __init__(self, meeting: Path, rank: int, num_ranks: int, device: torch.device, timeout_s: float) -> None:
        """Waits for the others. Raises Apart if one does not come within the time."""
        self.rank, self.num_ranks = rank, num_ranks
        store = dist.FileStore(str(meeting), num_ranks)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=timeout_s))
        make = _nccl if device.type == "cuda" else _gloo
        try:
            self._group = make(store, rank, num_ranks, device, timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise Apart(str(error)) from error

    def add_up(self, partial: Tensor) -> Tensor:
        if partial.nbytes * (self.num_ranks - 1) <= _GATHERED_BYTES:
            parts = self._gathered(partial)
            return torch.add(*parts, out=partial) if self.num_ranks == 2 else torch.sum(parts, dim=0, out=partial)
        return self.all_reduced(partial)

    def all_reduced(self, partial: Tensor) -> Tensor:
        """The same by the library's own sum."""
        _done(lambda: self._group.allreduce([partial], _on_this_stream(dist.AllreduceOptions())))
        return partial

    def side_by_side(self, part: Tensor) -> Tensor:
        return self._gathered(part).transpose(0, 1).reshape(len(part), -1)

    def _gathered(self, part: Tensor) -> Tensor:
        """[num_rows, size] of each rank → [num_ranks, num_rows, size]."""
        num_rows, size = part.shape
        parts = part.new_empty(self.num_ranks * num_rows, size)
        sent = part.contiguous()
        _done(lambda: self._group._allgather_base(parts, sent, _on_this_stream(AllgatherOptions())))
        return parts.view(-1, num_rows, size)

    def take_from_first(self, tensor: Tensor) -> Tensor:
        sent = tensor.contiguous()
        _done(lambda: self._group.broadcast([sent], _on_this_stream(dist.BroadcastOptions())))
        return sent

    def abort(self) -> None:
        """Ends what is under way, on any thread; what waits for it goes on, with an error or with numbers that mean
        nothing."""
        self._group.abort()


def _gloo(store: Any, rank: int, num_ranks: int, device: torch.device, timeout: timedelta) -> Any:  # noqa: ANN401
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, num_ranks, options)


def _nccl(store: Any, rank: int, num_ranks: int, device: torch.device, timeout: timedelta) -> Any:  # noqa: ANN401
    for name, value in _NCCL_DEFAULTS.items():
        os.environ.setdefault(name, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    group = dist.ProcessGroupNCCL(store, rank, num_ranks, options)
    group.eager_connect_single_device(device)
    return group


def _on_this_stream(options: Any) -> Any:  # noqa: ANN401 (three classes of torch's)
    """NCCL's launches go where the other kernels of the step are, and not beside them."""
    options.asyncOp = False
    return options


def _done(start: Callable[[], Any]) -> None:
    """Waits for what `start` begins. None is begun where there is nothing to wait for."""
    try:
        work = start()
        if work is not None:
            work.wait()
    except RuntimeError as error:
        raise Apart(str(error).partition(". This is typically")[0]) from error
