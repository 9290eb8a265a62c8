"""docs/configuration.md says what the settings are now."""

from configuration_reference import REFERENCE, configuration_reference

from loopwright.compose.settings import all_settings


def test_the_reference_is_what_the_source_says():
    assert REFERENCE.read_text(encoding="utf-8") == configuration_reference(), "run: make reference"


def test_the_reference_has_every_setting():
    text = configuration_reference()
    assert [key for key in all_settings() if f"| `{key.rpartition('.')[2]}` |" not in text] == []
