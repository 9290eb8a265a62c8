"""Takes an error out of the groups that task groups wrap it in. Never handles it. Used at the edges of a system."""

from collections.abc import Iterator
from contextlib import contextmanager

from loopwright.core.errors import LoopwrightError


@contextmanager
def one_error() -> Iterator[None]:
    """Raises one error where a group of them would leave the block: one of ours if there is, for people can read it."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        raise next((leaf for leaf in leaves if isinstance(leaf, LoopwrightError)), leaves[0]) from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one
