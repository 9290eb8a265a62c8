"""docs/openai.md and docs/responses.md say what the server's table of parameters says now."""

from openai_reference import OPENAI_REFERENCE, RESPONSES_REFERENCE, openai_reference, responses_reference


def test_the_reference_of_openai_s_parameters_is_what_the_source_says():
    assert OPENAI_REFERENCE.read_text(encoding="utf-8") == openai_reference(), "run: make reference"
    assert RESPONSES_REFERENCE.read_text(encoding="utf-8") == responses_reference(), "run: make reference"
