"""Generating from guesses: the model judges several in one forward, and only what it would have said itself stays.

Never guesses: the program's drafter does. Used by programs, over `Context.verify`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, Unpack

from loopwright.sdk.context import Context
from loopwright.sdk.model import detokenize, model
from loopwright.sdk.options import SamplingOptions
from loopwright.sdk.turn import Verified

Drafter: TypeAlias = Callable[[Verified | None, int], "Sequence[int] | Awaitable[Sequence[int]]"]
"""Given what became of the last drafts, None the first time, and how many may be guessed at most: the next drafts."""

NUM_JUDGED = 8
"""So many of the last rounds with guesses say whether guessing pays."""


@dataclass(frozen=True, slots=True)
class Speculated:
    """What was generated from guesses: `tokens` are those of plain generation, a stop token included.

    `num_steps` forwards made them; each would have made one. `num_guesses` rounds had drafts, of which `num_accepted`
    tokens stood; `gave_up` says whether guessing was switched off on the way."""

    text: str
    tokens: tuple[int, ...]
    num_steps: int
    num_guesses: int
    num_accepted: int
    gave_up: bool

    @property
    def num_saved(self) -> int:
        """Forwards less than plain generation takes."""
        return len(self.tokens) - self.num_steps


async def speculate(
    context: Context,
    drafter: Drafter,
    *,
    max_tokens: int = 256,
    cost: float = 0.25,
    ignore_eos: bool = False,
    proposes: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Speculated:
    """Lets the model continue from a program's guesses: the tokens of `generate`, greedy or with any seed.

    `cost` is what a round of guesses takes more than a plain step, in plain steps: when the last rounds brought fewer
    tokens than that on average, the rest is generated without guesses. With `proposes` the drafter also learns what the
    model finds most probable after each draft. Sampling options as for `stream`."""
    await context.flush()
    ends = set() if ignore_eos else set((await model(context.model)).eos_ids)
    rounds, written = _Rounds(), list[int]()
    verified: Verified | None = None
    while (num_left := max_tokens - len(written)) > 0:
        if not rounds.pay(cost):
            turn = await context.generate(max_tokens=num_left, ignore_eos=ignore_eos, **sampling)
            written += turn.tokens
            rounds.num_steps += len(turn.tokens)
            break
        found = drafter(verified, num_left - 1)
        drafts = (await found if isinstance(found, Awaitable) else found)[: num_left - 1]
        verified = await context.verify(drafts, proposes=proposes, **sampling)
        rounds.note(drafts, verified)
        end = next((place for place, token in enumerate(verified.tokens) if token in ends), None)
        if end is not None:
            written += verified.tokens[: end + 1]
            await context.truncate(len(context.tokens) - len(verified.tokens) + end)
            break
        written += verified.tokens
    text = await detokenize([token for token in written if token not in ends], model=context.model)
    return rounds.speculated(text, written, gave_up=not rounds.pay(cost))


@dataclass(slots=True)
class _Rounds:
    """What guessing has cost and brought so far."""

    num_steps: int = 0
    num_guesses: int = 0
    num_accepted: int = 0
    brought: deque[int] = field(default_factory=lambda: deque(maxlen=NUM_JUDGED))  # by the last rounds with guesses

    def note(self, drafts: Sequence[int], verified: Verified) -> None:
        self.num_steps += 1
        if drafts:
            self.num_guesses += 1
            self.num_accepted += verified.num_accepted
            self.brought.append(verified.num_accepted)

    def pay(self, cost: float) -> bool:
        """Whether guessing pays, as far as can be told."""
        return len(self.brought) < NUM_JUDGED or sum(self.brought) >= cost * NUM_JUDGED

    def speculated(self, text: str, tokens: Sequence[int], *, gave_up: bool) -> Speculated:
        return Speculated(text, tuple(tokens), self.num_steps, self.num_guesses, self.num_accepted, gave_up)
