"""Puts a report's goals, figures and picture into docs/gpu-figures.md, in place of the last run's. Never measures.

`python tests/gpu/into_docs.py gpu-report.md`, whose report and `.jsonl` may come from another machine.
What stands above "The last run" is written by hand, and stays.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures.goals import goals_table, read_found
from figures.picture import draw

DOCS = Path(__file__).parents[2] / "docs"
MARK = "## The last run\n"


def into_docs(report: Path, docs: Path = DOCS) -> None:
    """Raises ValueError if the report has no table of what it was made on, or the page no place for it."""
    page = docs / "gpu-figures.md"
    by_hand, mark, _ = page.read_text().partition(MARK)
    head, goals, _ = report.read_text().partition("\n## Goals and figures\n")
    if not mark or not goals:
        raise ValueError(f"{page} has no {MARK.strip()!r}" if not mark else f"{report} has no goals and figures")
    title, _, made_on = head.partition("\n")
    found = read_found(report.with_suffix(".jsonl"))
    draw(found, docs / "gpu-figures.svg")
    lines = [title.removeprefix("# "), *made_on.rstrip().splitlines(), "", *goals_table(found), "",
             "![From token to token, by batch, beside the goals and vLLM's figures](gpu-figures.svg)"]  # fmt: skip
    page.write_text(by_hand + mark + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    into_docs(Path(sys.argv[1]))
