"""The one configuration tree: read once, frozen, unknown keys refused. Never holds a derived value.

Made by the command line; compose hands each layer its own section.
"""

import os
from typing import Literal

import msgspec

from loopwright.control.scheduler import ControlConfig
from loopwright.runtime.limits import Limits
from loopwright.runtime.tool_config import ToolsConfig

Backend = Literal["auto", "fiber", "reentrant"]
MAX_CORES_OF_ONE_PROCESS = 4  # up to here one process serves best; above, the layers get processes of their own


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inference layer. A block holds 16 tokens of KV."""

    num_blocks: int = 2048
    num_slots: int = 4096  # embed slots
    num_threads: int = 0  # 0: one for each core that this process may use


class RuntimeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The application layer. `caps` bounds what a program's metadata may ask for."""

    caps: Limits = Limits(
        memory_mb=512, tree_memory_mb=4096, seconds=3600.0, cpu_seconds=600.0, max_pages=65536, max_embeds=65536,
        max_queues=4096, max_output_bytes=64 << 20, max_unread_bytes=256 << 20, max_open_calls=16384,
        max_queue_depth=16384, max_log_lines_per_s=100_000, max_children=256, max_state_bytes=256 << 20,
        max_file_bytes=1 << 30,
    )  # fmt: skip
    max_live_runs: int = 2048
    sandbox_backend: Backend = "auto"
    needs_wasm: bool = True  # False leaves the Wasm runner out: for native runs only
    allows_native: bool = False  # programs without isolation: for debugging on one's own machine
    holds_deadline: bool = True  # False: `limits.seconds` ends no run, for debugging
    programs_dir: str | None = None  # where deployed programs are kept; None keeps them in memory
    state_dir: str | None = None  # where named stores are kept; None keeps them in memory


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side."""

    host: str = "127.0.0.1"
    port: int = 8000


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured."""

    model: str = "default"
    more_models: tuple[str, ...] = ()  # each with a control layer and an engine of its own, as `engine` says
    num_runtime_workers: int = 0  # 0: everything in one process; n: a model process, n runtime processes, the server
    engine: EngineConfig = EngineConfig()
    control: ControlConfig = ControlConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    server: ServerConfig = ServerConfig()
    tools: ToolsConfig = ToolsConfig()

    @property
    def model_names(self) -> tuple[str, ...]:
        """All models, the default one first."""
        return (self.model, *self.more_models)


def default_num_workers(num_cores: int) -> int:
    """0 up to 4 cores; above that a runtime worker for every two cores, at most 8."""
    return 0 if num_cores <= MAX_CORES_OF_ONE_PROCESS else min(8, num_cores // 2)


def num_cores() -> int:
    """How many cores this process may use; a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
