"""Generating from guesses: the model judges several in one forward, and only what it would have said itself stays.

Never guesses: the program's drafter does. Used by programs, over `Context.verify`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, Unpack

from loopwright.sdk.argument_check import checked
from loopwright.sdk.context import Context
from loopwright.sdk.model import detokenize, model
from loopwright.sdk.options import SamplingOptions
from loopwright.sdk.turn import Verified

Drafter: TypeAlias = Callable[[Verified | None, int], "Sequence[int] | Awaitable[Sequence[int]]"]
"""Given what became of the last drafts, None if it has gone on without any since, and how many may be guessed at most:
the next drafts, or none."""

CREDIT = 1.0
"""How many plain steps guesses may lose before they have to pay, and how many of those they won count later."""

MIN_PLAIN = 4
"""Tokens without guesses once the credit is used up. Each time that guesses do not pay again it is twice as many."""

UNKNOWN_COST = 0.25
"""Of a round of guesses, in plain steps, where steps are not measured."""


@dataclass(frozen=True, slots=True)
class Speculated:
    """What was generated from guesses: `tokens` are those of plain generation, a stop token included.

    `num_steps` forwards made them; each would have made one. `num_guesses` rounds had drafts, of which `num_accepted`
    tokens stood, for `cost` more plain steps in all; `gave_up` says whether the last guesses did not pay."""

    text: str
    tokens: tuple[int, ...]
    num_steps: int
    num_guesses: int
    num_accepted: int
    cost: float
    gave_up: bool

    @property
    def num_saved(self) -> int:
        """Forwards less than plain generation takes."""
        return len(self.tokens) - self.num_steps


@checked
async def speculate(
    context: Context,
    drafter: Drafter,
    *,
    max_tokens: int = 256,
    cost: float | None = None,
    drafting: float = 0.0,
    ignore_eos: bool = False,
    proposes: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Speculated:
    """Lets the model continue from a program's guesses: the tokens of `generate`, greedy or with any seed.

    `cost` is what it takes to have a round of guesses judged, in plain steps; without one it is what such steps take on
    this server at this time. `drafting` is what guessing itself takes. When the last rounds have brought fewer tokens
    than that, and where there is no guess, it goes on without guesses, each time for twice as many tokens. With
    `proposes` the drafter also learns what the model finds most probable after each draft. Sampling options as for
    `stream`."""
    await context.place("")  # what was appended is tokens now, which a drafter may look at
    ends = set() if ignore_eos else set((await model(context.model)).eos_ids)
    rounds, written = _Rounds(cost, drafting), list[int]()
    verified: Verified | None = None
    while (num_left := max_tokens - len(written)) > 0:
        found = drafter(verified, num_left - 1)
        drafts = (await found if isinstance(found, Awaitable) else found)[: num_left - 1]
        if drafts:
            verified = await context.verify(drafts, proposes=proposes, **sampling)
            rounds.note(verified)
            end = next((place for place, token in enumerate(verified.tokens) if token in ends), None)
            if end is not None:
                written += verified.tokens[: end + 1]
                await context.truncate(len(context.tokens) - len(verified.tokens) + end)
                break
            written += verified.tokens
        num_plain = min(rounds.take_plain(has_drafts=bool(drafts)), max_tokens - len(written))
        if num_plain > 0:
            verified = None
            turn = await context.generate(max_tokens=num_plain, ignore_eos=ignore_eos, **sampling)
            written += turn.tokens
            rounds.num_steps += len(turn.tokens)
            if turn.reason != "length":
                break
    text = await detokenize([token for token in written if token not in ends], model=context.model)
    return rounds.speculated(text, written)


@dataclass(slots=True)
class _Rounds:
    """What guessing has cost and brought so far."""

    fixed_cost: float | None
    drafting: float
    num_steps: int = 0
    num_guesses: int = 0
    num_accepted: int = 0
    cost: float = 0.0
    credit: float = CREDIT
    num_plain: int = MIN_PLAIN  # tokens to go on plainly for next time
    gave_up: bool = False

    def note(self, verified: Verified) -> None:
        """Takes account of a round with guesses."""
        measured = UNKNOWN_COST if verified.cost is None else verified.cost
        cost = self.drafting + (measured if self.fixed_cost is None else self.fixed_cost)
        self.num_steps += 1
        self.num_guesses += 1
        self.num_accepted += verified.num_accepted
        self.gave_up = False
        self.cost += cost
        self.credit = min(self.credit + verified.num_accepted - cost, CREDIT)

    def take_plain(self, *, has_drafts: bool) -> int:
        """How many tokens to go on for without guesses now."""
        if has_drafts and self.credit >= 0:
            if self.credit > 0:
                self.num_plain = MIN_PLAIN
            return 0
        self.gave_up = has_drafts
        self.credit = max(self.credit, 0.0)
        num_plain, self.num_plain = self.num_plain, 2 * self.num_plain
        return num_plain

    def speculated(self, text: str, tokens: Sequence[int]) -> Speculated:
        counts = (self.num_steps, self.num_guesses, self.num_accepted, self.cost)
        return Speculated(text, tuple(tokens), *counts, self.gave_up)
