"""What the command line says of itself and of words that it does not know."""

import pytest

from loopwright.cli import VERBS, main


@pytest.mark.parametrize("verb", ["pull", "list"])
def test_the_help_of_a_verb_of_model_has_an_example(verb: str, capsys):
    with pytest.raises(SystemExit) as end:
        main(["model", verb, "--help"])
    assert end.value.code == 0
    assert f"example: loopwright model {verb}" in capsys.readouterr().out


def test_an_unknown_verb_is_answered_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as end:
        main(["lunch", "--at", "noon"])
    assert end.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage == "usage: loopwright VERB [options]"
    assert error == f"loopwright: error: no verb 'lunch'; the verbs are {', '.join(VERBS)}"


def test_no_words_at_all_show_the_help(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert "loopwright VERB --help" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["model"], ["model", "push"], ["logs"], ["cancel"], ["deploy"], ["run"], ["ps", "x"]]
)
def test_missing_or_superfluous_words_are_a_usage_line(words: list[str], capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: loopwright {words[0]}")
