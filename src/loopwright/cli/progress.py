"""Progress bars on stderr for long work. Never does the work: it gives a callback that does not mind threads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Report = Callable[[str, float | None], None]


@contextmanager
def progress_bars() -> Iterator[Report]:
    """A callback (stage, fraction): a bar per stage, which pulses while the fraction is None and is full at 1.

    Nothing is shown before the first call, so that quick work stays quiet."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(stage: str, fraction: float | None) -> None:
        if stage not in tasks:
            if not tasks:
                progress.start()
            tasks[stage] = progress.add_task(stage, total=None if fraction is None else 1.0)
        progress.update(tasks[stage], total=None if fraction is None else 1.0, completed=fraction or 0.0)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()
