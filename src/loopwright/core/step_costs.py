"""What a step costs on a device, as a table. Never measures and never waits. Read by the simulated device."""

from bisect import bisect_left
from dataclasses import dataclass

from loopwright.core.batch import Batch


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step by what is in it.

    `row_s` are (rows, seconds) by rising rows; between two the cost is on the line through them, and beyond the last
    on the line through the last two."""

    row_s: tuple[tuple[int, float], ...]
    token_s: float = 0.0  # of each token beyond the first of a row
    light_s: float = 0.0  # of a step without rows: copies, embeds and heads alone

    def step_s(self, batch: Batch) -> float:
        """Seconds that the batch takes."""
        num_rows = batch.num_rows
        if not num_rows:
            return self.light_s
        return self.rows_s(num_rows) + ((batch.num_tokens - num_rows) * self.token_s if self.token_s else 0.0)

    def rows_s(self, num_rows: int) -> float:
        """Seconds of a step of so many rows of one token."""
        if len(self.row_s) == 1:
            return self.row_s[0][1]
        place = bisect_left(self.row_s, num_rows, key=lambda point: point[0])
        place = min(max(place, 1), len(self.row_s) - 1)
        (rows, cost_s), (next_rows, next_cost_s) = self.row_s[place - 1], self.row_s[place]
        return cost_s + (num_rows - rows) * (next_cost_s - cost_s) / (next_rows - rows)
