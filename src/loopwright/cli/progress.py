"""Progress bars on stderr for long work. Never does the work: it gives a callback that does not mind threads."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopwright.cli.bars import Bars

Report = Callable[[str, float | None], None]


@contextmanager
def progress_bars() -> Iterator[Report]:
    """A callback (stage, fraction): a bar per stage, which pulses while the fraction is None and is full at 1.

    Nothing is shown before the first call, and rich is not imported, so that quick work stays quick and quiet."""
    with ExitStack() as stack:
        bars: list[Bars] = []

        def report(stage: str, fraction: float | None) -> None:
            if not bars:
                bars.append(stack.enter_context(_open_bars()))
            bars[0].report(stage, fraction)

        yield report


def _open_bars() -> "Bars":
    from loopwright.cli.bars import Bars  # noqa: PLC0415 (see above)

    return Bars()
