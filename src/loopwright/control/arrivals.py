"""How long a step waits for programs that are just being started. Never waits itself, and reads no clock.

Programs that come together start one after the other. A step for the first of them alone costs nearly what one for all
of them costs, and all the others have to wait for its end. Asked by the controller before it has a step formed.
"""

MAX_STEPS = 2.0
"""How many steps of the last one's length a step waits at most: it saves one, and makes the first of many cheaper."""

MAX_HOLD_S = 0.1


class Arrivals:
    """Launches that are on their way, of which the runtime tells."""

    def __init__(self) -> None:
        self._num_expected = 0
        self._step_s = 0.0  # how long the last step took
        self._prompts_s = 0.0  # and on a device the last one with prompts: that is what the first few would take
        self._began_s: float | None = None  # when a step was held for those that are expected now

    def expect(self, num_launches: int) -> None:
        """So many are on their way now."""
        self._num_expected = num_launches
        if not num_launches:
            self._began_s = None

    def step_over(self, taken_s: float, *, has_prompts: bool = False) -> None:
        """A step took so long. `has_prompts`: it ran some, on a device, where a few take hardly less than many."""
        self._step_s = taken_s
        if has_prompts:
            self._prompts_s = taken_s

    def hold_s(self, now_s: float, *, would_hold_up: bool) -> float:
        """For how many seconds the next step should wait; 0.0 is not at all. `would_hold_up`: somebody is in the middle
        of an answer, and waits for none."""
        if not self._num_expected or would_hold_up:
            return 0.0
        if self._began_s is None:
            self._began_s = now_s
        return max(self._began_s + min(max(MAX_STEPS * self._step_s, self._prompts_s), MAX_HOLD_S) - now_s, 0.0)
