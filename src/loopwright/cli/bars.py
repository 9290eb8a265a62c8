"""Progress bars on stderr. Never decides what is long: `progress` makes them when it is told of long work."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Bars:
    """A bar per stage. A context manager: they are drawn for the last time at its end."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def report(self, stage: str, fraction: float | None) -> None:
        """A bar pulses while the fraction is None and is full at 1."""
        total = None if fraction is None else 1.0
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], total=total, completed=fraction or 0.0)
