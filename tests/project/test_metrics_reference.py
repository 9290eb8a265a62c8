"""docs/metrics.md says what the metrics are now."""

from metrics_reference import REFERENCE, metrics_reference


def test_the_reference_is_what_the_source_says():
    assert REFERENCE.read_text(encoding="utf-8") == metrics_reference(), "run: make reference"
