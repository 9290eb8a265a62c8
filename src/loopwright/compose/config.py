"""The one configuration tree: read once, frozen, unknown keys refused. Never holds a derived value.

Each field says what it means, within which limits, and which flag sets it. `settings` lists them, `config_sources`
fills them in, and compose hands each layer its own section.
"""

import os
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.control.config import ControlConfig
from loopwright.core.model_info import WeightDtype
from loopwright.runtime.limits import Limits
from loopwright.runtime.tool_config import ToolsConfig
from loopwright.server.response_limits import ResponsesConfig
from loopwright.weights.store import DUMMY

Backend = Literal["auto", "fiber", "reentrant"]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
MAX_CORES_OF_ONE_PROCESS = 4  # up to here one process serves best; above, the layers get processes of their own
PROCESSES_MEANING = (
    "1: everything in one process. N > 1: a model process for each model, N - 1 runtime processes, and this one, which "
    "serves HTTP. auto: 1 up to 4 cores; above, a runtime process for every two cores, at most 8"
)

DTYPE_MEANING = (
    "how weights are kept. float32: torch, the reference. bfloat16, int8: native kernels, or a GPU's; stored: native "
    "ones, each matrix as its file has it; fp8, int4: a GPU's. auto: bfloat16 where kernels can run, else float32"
)


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inference layer."""

    num_blocks: Annotated[
        int,
        Meta(
            ge=0,
            description="KV blocks of 16 tokens; 0: 2048 on a CPU, on a GPU what its memory has room for",
            extra={"flag": "--num-blocks"},
        ),
    ] = 0
    num_slots: Annotated[Count, Meta(description="embeddings and hidden states that programs can hold")] = 4096
    num_threads: Annotated[
        int, Meta(ge=0, description="threads that compute; 0: one for each core", extra={"flag": "--threads"})
    ] = 0
    dtype: Annotated[WeightDtype, Meta(description=DTYPE_MEANING, extra={"flag": "--dtype"})] = "auto"
    instructions: Annotated[
        Literal["auto", "avx512_bf16", "avx512", "avx2"],
        Meta(description="the instruction set of the native kernels; auto: the best that the processor has"),
    ] = "auto"
    scratch_mb: Annotated[
        Count,
        Meta(description="memory of the native kernels for a step, beside weights and KV; long contexts want more"),
    ] = 64
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(
            description="what computes; auto: the GPU, if there is one and it can run the model",
            extra={"flag": "--device"},
        ),
    ] = "auto"
    attention: Annotated[
        Literal["auto", "flashinfer", "sdpa"],
        Meta(description="how prompts attend on a GPU; auto: flashinfer where it is installed, else sdpa"),
    ] = "auto"
    tensor_parallel: Annotated[
        Count,
        Meta(
            description="processes that share a model, each with a part of its heads: as many GPUs, or CPU processes",
            extra={"flag": "--tensor-parallel"},
        ),
    ] = 1
    deterministic: Annotated[
        bool, Meta(description="refuse to compute where a row's bits may depend on its neighbours'")
    ] = False
    load: Annotated[
        Literal["auto", "dummy"],
        Meta(
            description="dummy: random weights of engine.shape in place of the model's, to measure speed",
            extra={"flag": "--load"},
        ),
    ] = "auto"
    shape: Annotated[
        str,
        Meta(description="the sizes of a dummy: llama-1b, … (docs/gpu-engine.md)", extra={"flag": "--shape"}),
    ] = ""


class RuntimeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The application layer."""

    caps: Annotated[Limits, Meta(description="the most that a program's metadata may ask for of")] = Limits(
        memory_mb=512, tree_memory_mb=4096, seconds=3600.0, cpu_seconds=600.0, max_pages=65536, max_embeds=65536,
        max_queues=4096, max_output_bytes=64 << 20, max_unread_bytes=256 << 20, max_open_calls=16384,
        max_open_bytes=256 << 20, max_queue_depth=16384, max_log_lines_per_s=100_000, max_children=256,
        max_state_bytes=256 << 20, max_file_bytes=1 << 30,
    )  # fmt: skip
    max_live_runs: Annotated[Count, Meta(description="runs at a time, of each runtime process")] = 2048
    sandbox_backend: Annotated[Backend, Meta(description="how programs are suspended; auto: fibers, if they work")] = (
        "auto"
    )
    needs_wasm: Annotated[bool, Meta(description="false: no Wasm sandbox, for native runs only")] = True
    allows_native: Annotated[
        bool, Meta(description="programs without isolation: for debugging on one's own machine")
    ] = False
    holds_deadline: Annotated[bool, Meta(description="false: `limits.seconds` ends no run, for debugging")] = True
    programs_dir: Annotated[
        str | None,
        Meta(description="where deployed programs are kept; none: in memory", extra={"flag": "--programs-dir"}),
    ] = None
    state_dir: Annotated[
        str | None, Meta(description="where named stores are kept; none: in memory", extra={"flag": "--state-dir"})
    ] = None


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side."""

    host: Annotated[str, Meta(min_length=1, description="the address to bind", extra={"flag": "--host"})] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="0: any free one", extra={"flag": "--port"})] = 8000
    grace_s: Annotated[
        int,
        Meta(ge=1, description="seconds that requests and runs under way have to end in when the server is stopped"),
    ] = 5
    stall_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="a client that reads nothing of its answer, or sends nothing of its request, for so long "
            "is cut off, in seconds",
        ),
    ] = 30.0
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=1 << 10,
            description="of a request; what is done at once with a text of 4 MiB holds others up for about 10 ms",
        ),
    ] = 4 << 20
    api_workers: Annotated[
        int,
        Meta(
            ge=0,
            description="processes that speak HTTP in place of the first one, which many streams at once keep busy; "
            "0: none. With runtime processes only",
            extra={"flag": "--api-workers"},
        ),
    ] = 0
    keys: Annotated[
        dict[str, str],
        Meta(
            description="tenants with their keys; ${NAME} is a variable of the environment. None: everybody is served",
            extra={"secret": True},
        ),
    ] = msgspec.field(default_factory=dict)
    responses: Annotated[ResponsesConfig, Meta(description="what is kept of /v1/responses:")] = ResponsesConfig()


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server says on standard error."""

    format: Annotated[Literal["text", "json"], Meta(description="lines of text, or an object a line")] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="from what on; info has a line for each request")
    ] = "warning"


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces, through OpenTelemetry."""

    otlp_endpoint: Annotated[
        str,
        Meta(description="where spans of runs are sent, OTLP over HTTP: http://host:4318/v1/traces; empty: nowhere"),
    ] = ""
    otlp_headers: Annotated[
        dict[str, str],
        Meta(description="sent with them; ${NAME} is a variable of the environment", extra={"secret": True}),
    ] = msgspec.field(default_factory=dict)
    sample_ratio: Annotated[
        float, Meta(ge=0, le=1, description="of requests without a trace of their own, how many are recorded")
    ] = 1.0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured."""

    model: Annotated[
        str,
        Meta(
            min_length=1,
            description="a model's name, GGUF file, folder or Hub id; the flag again for each further model",
            extra={"flag": "--model"},
        ),
    ] = "default"
    more_models: Annotated[
        tuple[str, ...], Meta(description="further models, each with an engine of its own, as `engine` says")
    ] = ()
    processes: Annotated[
        Count | Literal["auto"], Meta(description=PROCESSES_MEANING, extra={"flag": "--processes"})
    ] = 1
    engine: EngineConfig = EngineConfig()
    control: ControlConfig = ControlConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    tools: ToolsConfig = ToolsConfig()

    @property
    def model_names(self) -> tuple[str, ...]:
        """All models, the default one first."""
        if self.engine.load == "dummy":
            return (f"{DUMMY}{self.engine.shape}", *self.more_models)
        return (self.model, *self.more_models)

    @property
    def num_runtime_workers(self) -> int:
        """Runtime processes; 0 is everything in one process."""
        return default_num_workers(num_cores()) if self.processes == "auto" else self.processes - 1


def server_defaults(folder: Path | None = None) -> Config:
    """What holds for `loopwright serve` where nothing else is said: it uses the machine, and keeps what it is given."""
    state = folder or state_folder()
    runtime = RuntimeConfig(programs_dir=str(state / "programs"), state_dir=str(state / "state"))
    return Config(processes="auto", runtime=runtime)


def state_folder() -> Path:
    """Where a server keeps what outlives it: $LOOPWRIGHT_STATE_DIR, or $XDG_STATE_HOME/loopwright, or else
    ~/.local/state/loopwright."""
    if own := os.environ.get("LOOPWRIGHT_STATE_DIR"):
        return Path(own)
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named else Path.home() / ".local" / "state") / "loopwright"


def default_num_workers(num_cores: int) -> int:
    """0 up to 4 cores; above that a runtime worker for every two cores, at most 8."""
    return 0 if num_cores <= MAX_CORES_OF_ONE_PROCESS else min(8, num_cores // 2)


def num_cores() -> int:
    """How many cores this process may use; a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
