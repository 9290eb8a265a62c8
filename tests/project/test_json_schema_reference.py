"""docs/json-schema.md says what a run of the public suite shows now."""

from json_schema_reference import JSON_SCHEMA_REFERENCE, json_schema_reference


def test_the_table_of_json_schema_is_what_a_run_of_the_suite_shows():
    assert JSON_SCHEMA_REFERENCE.read_text(encoding="utf-8") == json_schema_reference(), "run: make reference"
