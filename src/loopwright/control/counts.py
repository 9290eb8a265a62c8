"""Owns what was counted since the start. Never decides anything by it. Fed by the controller, once a step."""

from dataclasses import dataclass

from loopwright.control.step import Step


@dataclass(slots=True)
class StepCounts:
    """The counters of `core.control.ControlStats`; a step that failed counts in `num_failed_steps` only."""

    num_steps: int = 0
    num_rows: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_wasted_rows: int = 0
    num_failed_steps: int = 0
    busy_s: float = 0.0

    def count(self, step: Step) -> None:
        self.num_steps += 1
        self.num_rows += step.num_rows
        num_tokens = [row.num_tokens for row in step.batch_rows[step.num_short :]]
        num_single = num_tokens.count(1)
        self.num_decode_tokens += len(step.decoded) + step.num_short + num_single
        self.num_prefill_tokens += sum(num_tokens) - num_single
