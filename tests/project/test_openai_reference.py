"""docs/openai.md, docs/responses.md and docs/messages.md say what the server's table of parameters says now."""

from openai_reference import (
    MESSAGES_REFERENCE,
    OPENAI_REFERENCE,
    RESPONSES_REFERENCE,
    messages_reference,
    openai_reference,
    responses_reference,
)


def test_the_reference_of_openai_s_parameters_is_what_the_source_says():
    assert OPENAI_REFERENCE.read_text(encoding="utf-8") == openai_reference(), "run: make reference"
    assert RESPONSES_REFERENCE.read_text(encoding="utf-8") == responses_reference(), "run: make reference"
    assert MESSAGES_REFERENCE.read_text(encoding="utf-8") == messages_reference(), "run: make reference"
