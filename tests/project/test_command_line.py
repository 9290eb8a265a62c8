"""Every verb explains itself."""

import re

import pytest

from loopwright.cli import VERBS, main


@pytest.mark.parametrize("name", VERBS)
def test_a_verbs_help_has_an_example_of_that_verb(name: str, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    example = capsys.readouterr().out.partition("example:\n")[2]
    assert re.search(rf"loopwright {name}\b", example)


def test_the_help_lists_every_verb(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    listed = re.findall(r"^  ([a-z]+)  ", capsys.readouterr().out, flags=re.MULTILINE)
    assert set(VERBS) <= set(listed)


@pytest.mark.parametrize("words", [["lunch"], ["bench"], ["bench", "launch", "--no-such-flag"]])
def test_wrong_usage_is_a_usage_line_and_status_2(words: list[str], capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: loopwright")


def test_an_error_is_one_line_with_its_hint_and_status_1(capsys):
    assert main(["bench", "lunch"]) == 1
    assert capsys.readouterr().err == (
        "loopwright: no suite 'lunch' "
        "(the suites are launch, calls, dev, decode, growth, batching, overhead, steps, mechanisms, agents, serving, "
        "techniques, memory, size and all)\n"
    )
