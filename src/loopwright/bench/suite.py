"""The seam between a suite and the system that it measures. Never builds the system: compose does. Implemented by each
suite's module, run by `command`."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from loopwright.bench.rows import Row
from loopwright.control.policies import PolicyName
from loopwright.core.control import Control
from loopwright.core.executor import Executor
from loopwright.core.model_info import WeightDtype
from loopwright.core.runs import Runs


class System(Protocol):
    """A running system, as a suite sees it."""

    @property
    def runs(self) -> Runs: ...

    @property
    def control(self) -> Control: ...

    def control_with(self, policy: PolicyName) -> AbstractAsyncContextManager[Control]:
        """A control layer of its own, of that batching policy, over the same engine. Nothing else may use the engine
        until it is closed."""
        ...

    @property
    def model_path(self) -> Path:
        """The model's file or folder, for peers that load the same one."""
        ...

    @property
    def num_threads(self) -> int:
        """How many threads the engine computes with."""
        ...

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights that one decode step reads: a tied embedding counts once, an untied input embedding not."""
        ...

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of KV that one token has, over all layers."""
        ...

    @property
    def executor(self) -> Executor:
        """The engine itself, for what is measured below control. Whoever uses it leaves control idle."""
        ...

    @property
    def device_s(self) -> float | None:
        """Seconds in which a simulated device has computed; None of an engine."""
        ...

    @property
    def dtype(self) -> WeightDtype:
        """How the engine keeps weights, so that a peer can keep them alike."""
        ...


StepsAheadOption: TypeAlias = Literal["auto", "on", "off"]


class OpenSystem(Protocol):
    """Starts a system that serves the named model, and closes it."""

    def __call__(
        self,
        model: str,
        *,
        prefix_cache: bool = False,
        num_blocks: int | None = None,
        steps_ahead: StepsAheadOption = "auto",
    ) -> AbstractAsyncContextManager[System]: ...


Scale: TypeAlias = Literal["small", "paper"]
SCALES: tuple[Scale, ...] = ("small", "paper")


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller of a suite chose."""

    model: str = "default"
    num_rounds: int = 5  # values are medians over these
    num_live: tuple[int, ...] = ()  # for the launch suite: measure so many live programs, and nothing else
    scale: Scale | None = None  # for the techniques suite, as the next one; None is small
    techniques: tuple[str, ...] = ()  # none is all
    num_requests: int | None = None  # for the techniques suite: so many at once; None is the scale's own number
    plot: Path | None = None  # for the growth suite: also draw it there
    device: str | None = None  # for the steps, mechanisms and agents suites: this simulated device, and no engine
    num_workers: int = 0  # for the mechanisms and agents suites: programs run in so many processes


DEFAULT_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Measured:
    """A suite's own rows, and what to tell a peer so that it measures the same thing."""

    rows: tuple[Row, ...]
    workload: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Suite:
    """A named set of cases."""

    name: str
    title: str
    measure: Callable[[Options, OpenSystem], Awaitable[Measured]]
