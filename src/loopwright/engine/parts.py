"""What a rank loads and on what it computes, the same for the first rank and the others; one rank alone has it all.

Never starts a process. Used by the executor's maker and by the processes of the other ranks.
"""

import dataclasses
from pathlib import Path

import torch
import torch.distributed as dist

from loopwright.core.errors import Unavailable
from loopwright.engine.cuda.choice import DeviceChoice, DeviceName, choose_device
from loopwright.engine.cuda.dummy import dummy_model, shape_config
from loopwright.engine.cuda.matrices import FEWER_BITS
from loopwright.engine.decoded_ahead import DecodedAhead
from loopwright.engine.loaded_model import LoadedModel, ModelConfig
from loopwright.engine.loader import load_model, read_config
from loopwright.engine.ranks.messages import RankSettings
from loopwright.engine.shards import Shard, check_split


def check_part(settings: RankSettings, *, is_deterministic: bool) -> None:
    """Raises BadRequest and Unavailable for what cannot be split so, or not be had, before a weight is read."""
    config = shape_config(settings.shape) if settings.shape else read_config(Path(settings.path), settings.layers)
    check_split(config, settings.num_ranks)
    if choose_part(settings, config, is_deterministic=is_deterministic) is None and settings.num_ranks > 1:
        _check_cpu(settings, is_deterministic=is_deterministic)


def load_part(settings: RankSettings, ahead: DecodedAhead | None = None) -> LoadedModel:
    """The rank's part of the model; its `ranks` are still to be said. Raises as `load_model` does."""
    shard = Shard(settings.rank, settings.num_ranks)
    if settings.shape:
        is_held = settings.dtype not in FEWER_BITS or settings.device == "cpu"
        return dummy_model(shape_config(settings.shape), shard=shard, is_held=is_held)
    return load_model(Path(settings.path), ahead, settings.layers, shard)


def choose_part(settings: RankSettings, config: ModelConfig, *, is_deterministic: bool = False) -> DeviceChoice | None:
    """The rank's own device, None for the CPU. Raises as `choose_device` does, and where there are fewer GPUs than
    ranks."""
    choice = choose_device(
        settings.device, config, settings.dtype, settings.attention, is_deterministic=is_deterministic
    )
    if choice is None:
        if settings.attention == "flashinfer":
            raise Unavailable("engine.attention: 'flashinfer' runs on a GPU alone", field="engine.attention")
        return None
    if settings.num_ranks == 1:
        return choice
    if is_deterministic:
        raise Unavailable(
            f"engine.deterministic: NCCL adds up what {settings.num_ranks} GPUs have in an order of its own",
            hint="engine.tensor_parallel = 1",
            field="engine.deterministic",
        )
    _check_gpus(settings.num_ranks)
    return dataclasses.replace(choice, device=torch.device("cuda", settings.rank), num_ranks=settings.num_ranks)


def describe_ranks(num_ranks: int, device: DeviceName) -> str:
    """Where so many ranks would be, for people. Raises Unavailable where there are fewer GPUs."""
    if device == "cpu" or not torch.cuda.is_available():
        return f"{num_ranks} processes on the CPU, in float32, through gloo"
    _check_gpus(num_ranks)
    return f"{num_ranks} processes on {num_ranks} of {torch.cuda.device_count()} GPUs, through NCCL"


def _check_gpus(num_ranks: int) -> None:
    if (num_gpus := torch.cuda.device_count()) < num_ranks:
        raise Unavailable(
            f"engine.tensor_parallel: {num_ranks} ranks need as many GPUs, and torch sees {num_gpus}",
            hint="engine.device = 'cpu' needs none",
            field="engine.tensor_parallel",
        )
    if not dist.is_available() or not dist.is_nccl_available():
        raise Unavailable(
            f"engine.tensor_parallel: torch {torch.__version__} has no NCCL", field="engine.tensor_parallel"
        )


def _check_cpu(settings: RankSettings, *, is_deterministic: bool) -> None:
    if settings.dtype not in ("auto", "float32"):
        raise Unavailable(
            f"engine.dtype: {settings.dtype!r} is for one process or for GPUs: {settings.num_ranks} ranks on a CPU are "
            "torch's, in float32",
            hint="engine.dtype = 'auto' or 'float32', or engine.tensor_parallel = 1",
            field="engine.dtype",
        )
    if is_deterministic:
        raise Unavailable(
            f"engine.deterministic: the native kernels are, and {settings.num_ranks} ranks do not use them",
            hint="engine.tensor_parallel = 1",
            field="engine.deterministic",
        )
