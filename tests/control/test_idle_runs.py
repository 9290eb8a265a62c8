"""Which runs count as idle, so that others may have their pages: those of which nothing could run."""

from types import SimpleNamespace

import pytest

from loopwright.control.suspension import _is_idle

PAUSED = SimpleNamespace(is_paused=True, num_blockers=0)  # waits for its program
BLOCKED = SimpleNamespace(is_paused=False, num_blockers=1)  # waits for a call of the same run
READY = SimpleNamespace(is_paused=False, num_blockers=0)


@pytest.mark.parametrize(
    ("calls", "is_idle"),
    [
        ([], True),
        ([PAUSED], True),
        ([PAUSED, BLOCKED], True),
        ([PAUSED, READY], False),
        ([READY], False),
        ([BLOCKED], False),  # a call that only waits for others has one before it that runs
    ],
)
def test_a_run_is_idle_when_its_program_is_what_all_waits_for(calls: list[SimpleNamespace], is_idle: bool) -> None:
    session = SimpleNamespace(open_calls=dict(enumerate(calls)))
    assert _is_idle(session) is is_idle  # type: ignore[arg-type]
