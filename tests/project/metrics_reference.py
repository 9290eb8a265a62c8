"""Writes docs/metrics.md: every metric of a server.

Run by `make reference`; a test compares the file with what this would write.
"""

from calls_reference import _escaped
from repository import ROOT

from loopwright.core.instrument import MAX_LABEL_VALUES, OTHER
from loopwright.core.metrics import METRICS, Metric
from loopwright.runtime.launcher import UPLOADED
from loopwright.runtime.timeline import PHASE_MEANINGS
from loopwright.server.metrics_route import PREFIX

REFERENCE = ROOT / "docs" / "metrics.md"

INTRODUCTION = f"""# Metrics

<!-- Written by `make reference` from the source; do not edit. -->

`GET /metrics` answers in Prometheus' text, or as OpenMetrics to who asks for that. Names are in the style of the field,
with `{PREFIX}` before them; a counter ends with `_total`, a histogram has `_bucket`, `_sum` and `_count`. What several
processes count is added up, and what a process counted until it was last asked outlives it.

Requests are runs, whoever asked for them: an OpenAI request is the run of a built-in program. `program` is the name
that a program was deployed under, or that of a built-in one; a source that comes with its run is counted as
`{UPLOADED}`, for anybody chooses its name. Of tenants, programs and tools, {MAX_LABEL_VALUES} are told apart by each
process; what comes after them is `{OTHER}`.

Counting is done where things happen, in plain numbers: a step pays for it once, not for each row. What a call of the
engine used is counted when it ends. No metric holds anything of a prompt, an answer or an argument.

"""


def metrics_reference() -> str:
    """What stands in docs/metrics.md."""
    rows = [_row(one) for one in METRICS.values()]
    phases = [f"| `{name}` | {_escaped(meaning)} |\n" for name, meaning in PHASE_MEANINGS.items()]
    return "".join(
        [
            INTRODUCTION,
            "| metric | kind | labels | meaning |\n|---|---|---|---|\n",
            *rows,
            "\n## Phases of a run\n\nAt each moment a run is in one phase, of several the first of this table; so they "
            "add up to its latency.\n\n| phase | meaning |\n|---|---|\n",
            *phases,
        ]
    )


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {_escaped(metric.meaning)} |\n"


if __name__ == "__main__":
    REFERENCE.write_text(metrics_reference(), encoding="utf-8")
