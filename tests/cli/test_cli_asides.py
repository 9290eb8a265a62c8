"""On a terminal what a program says beside its text has lines of its own."""

import io

import pytest

from loopwright.cli import run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("screen", "text_end", "shown", "then"),
    [
        (Terminal, "x", "\n[emit] 1\n", "\n"),
        (Terminal, "\n", "[emit] 1\n", "\n"),
        (Terminal, "", "[emit] 1\n", ""),
        (io.StringIO, "x", "[emit] 1\n", "x"),
    ],
)
def test_a_line_beside_a_text_begins_where_a_line_begins(
    screen: type[io.StringIO], text_end: str, shown: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = screen()
    monkeypatch.setattr("sys.stdout", screen())
    monkeypatch.setattr("sys.stderr", errors)
    assert run._aside("[emit] 1", text_end) == then
    assert errors.getvalue() == shown
