"""The time that control goes by: that of what happened to it last. Never reads a clock: the controller does."""


class Moment:
    """Shared by what keeps books over time."""

    __slots__ = ("now_s", "step_over_s")

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.step_over_s = now_s  # when the last step was
