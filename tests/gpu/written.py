"""The report as a file: what it was made on, goals beside figures, a picture, then what each job said. Never measures.

It is written anew whenever something is known, so that whatever ends the run leaves the report of what was done. Called
by `speed`.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures.goals import goals_table, read_found
from figures.picture import draw
from lanes import Job, Outcome


class Report:
    """What is known so far. It is written to `path`; beside it `.jsonl` has the figures, and `.svg` the picture."""

    def __init__(self, path: Path, made_on: Mapping[str, str], when: str, jobs: Sequence[Job]) -> None:
        self.path = path
        self.found_at = path.with_suffix(".jsonl")
        self._made_on, self._when, self._jobs = made_on, when, jobs
        self._began_s = time.monotonic()
        self._outcomes: dict[Job, Outcome] = {}
        self.tests: list[str] = []
        self.found_at.write_text("")

    def done(self, job: Job, outcome: Outcome) -> None:
        self._outcomes[job] = outcome
        self.save()

    def save(self) -> None:
        lines = self.summary()
        for job in self._jobs:
            told = self._outcomes.get(job)
            if told is not None and not told.why_not:
                lines += [*told.lines, "", f"({job}: {told.took_s:.0f} s)"]
        self.path.write_text("\n".join(lines) + "\n")

    def summary(self) -> list[str]:
        """All but what the jobs said."""
        found = read_found(self.found_at)
        lines = [f"# The engine on a GPU, {self._when}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self._made_on.items()]
        lines += [f"| took | {time.monotonic() - self._began_s:.0f} s |"]
        lines += [f"| tests | {'<br>'.join(self.tests) or 'none were run'} |", "", "## Goals and figures", ""]
        lines += [*goals_table(found), "", *self._picture(found)]
        lines += [f"- left out: {job}: {told.why_not}" for job, told in self._outcomes.items() if told.why_not]
        lines += [f"- not begun, or not ended: {job}" for job in self._jobs if job not in self._outcomes]
        return lines

    def _picture(self, found: Mapping[str, Sequence[float]]) -> list[str]:
        if not any(name.startswith("tpot/") for name in found):
            return []
        picture = self.path.with_suffix(".svg")
        try:
            draw(found, picture)
        except ImportError:
            again = f"python tests/gpu/figures/picture.py {self.found_at} {picture}"
            return [f"(no picture: there is no matplotlib here. Elsewhere: `{again}`)", ""]
        return [f"![From token to token, by batch, beside the goals and vLLM's figures]({picture.name})", ""]
