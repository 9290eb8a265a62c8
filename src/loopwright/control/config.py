"""What a server's `control` section says: how large a step may be, how long things may wait, and when steps are formed.

Never decides. A section of compose's configuration; read by the scheduler, the policies and whoever suspends runs.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from loopwright.control.policies import PolicyName

Seconds: TypeAlias = Annotated[float, Meta(ge=0)]


class ControlConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a step may be. Prompts get what the rows of one token leave of `max_batch_tokens`, so the second limit
    must be above the first; and beside rows that decode no more than `prompt_step_s` allows."""

    max_batch_rows: Annotated[
        int, Meta(ge=1, description="rows of one token in a step; also heads, embeds, copies and shifts, each")
    ] = 256
    max_batch_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="tokens in a step; prompts get what rows of one token leave of it. 0: 512 on a CPU, on a GPU "
            "2048 to 32768 by its memory",
        ),
    ] = 0
    prompt_step_s: Annotated[
        Seconds | Literal["auto"],
        Meta(
            description="how long a step may take, by what steps took, for prompts to be in it beside rows that "
            "decode; 0: no limit; auto: 0.02 on a GPU, no limit on a CPU"
        ),
    ] = "auto"
    prefix_cache: Annotated[bool, Meta(description="whether what was computed before is taken instead of again")] = True
    max_idle_s: Annotated[
        Seconds, Meta(description="how long a run without calls keeps its pages if others wait for some")
    ] = 0.02
    max_stuck_s: Annotated[
        Seconds, Meta(description="how long calls may all wait for pages that cannot be dropped before one fails")
    ] = 0.1
    max_held_s: Annotated[
        Seconds,
        Meta(description="how long calls may wait for pages that silent runs hold and cannot give up before one fails"),
    ] = 30.0
    policy: Annotated[PolicyName, Meta(description="when waiting calls become a batch; the others are to compare")] = (
        "adaptive"
    )
    policy_calls: Annotated[int, Meta(ge=1, description="k-only: calls of a batch")] = 8
    policy_max_wait_s: Annotated[Seconds, Meta(description="k-only: a batch may be smaller after so long")] = 0.1
    policy_wait_s: Annotated[
        Seconds, Meta(description="t-only: how long the first call of a batch waits for others")
    ] = 0.016
    steps_ahead: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="whether a step is formed while the one before it runs; auto: if the engine gains by it"),
    ] = "auto"

    def __post_init__(self) -> None:
        if self.max_batch_tokens and not 0 < self.max_batch_rows < self.max_batch_tokens:
            raise ValueError(
                f"max_batch_rows {self.max_batch_rows} must be from 1 to below max_batch_tokens {self.max_batch_tokens}"
            )
