"""A next-token distribution as the engine reports it. Never asks for one. Returned by `Context.next_dist`."""

import math
from array import array
from binascii import a2b_base64
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

from loopwright.sdk.argument_check import checked
from loopwright.sdk.errors import BoundaryHit

_MAX_SHOWN = 5


class RandomSource(Protocol):
    """What `sample` draws from; `random.Random` is one."""

    def random(self) -> float: ...


@checked
class Distribution:
    """Log-probabilities of the most probable tokens, exact: their normaliser runs over the whole vocabulary.

    `ids` and `logprobs` are parallel, by falling probability. `covered` is the mass they hold, `tail_mass` the rest,
    `truncated` whether there is a rest. Asked for with `allowed`, all of this is of the masked distribution, and
    `allowed_mass` is what the mask has without it. `entropy` (nats) and `logits` (the model's own, of the whole
    vocabulary, by id) are None unless asked for; so are `ranks`, where 1 is the most probable of all."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.ids = array("i", a2b_base64(data["ids"]))
        self._packed: str = data["logprobs"]  # until somebody looks at them
        self.covered: float = data["covered"]
        self.tail_mass: float = data["tail_mass"]
        self.truncated: bool = data["truncated"]
        self.entropy: float | None = data.get("entropy")
        self.allowed_mass: float | None = data.get("allowed_mass")
        logits = data.get("logits")
        self.logits = None if logits is None else array("f", a2b_base64(logits))
        ranks = data.get("ranks")
        self.ranks = None if ranks is None else array("i", a2b_base64(ranks))

    @cached_property
    def logprobs(self) -> "array[float]":
        """Of each of `ids`."""
        return array("f", a2b_base64(self._packed))

    def __repr__(self) -> str:
        """The most probable tokens with their probabilities, how many are listed, and the mass of the rest."""
        shown = ", ".join(f"{token}: {math.exp(logprob):.3g}" for token, logprob in islice(self, _MAX_SHOWN))
        more = ", …" if len(self) > _MAX_SHOWN else ""
        return f"<Distribution {shown}{more} ({len(self)} listed, tail {self.tail_mass:.3g})>"

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Pairs of token id and log-probability."""
        return iter(zip(self.ids, self.logprobs, strict=True))

    def logprob(self, token: int) -> float | None:
        """The token's log-probability, or None when it is not listed."""
        return next((logprob for one, logprob in self if one == token), None)

    def listed(self, token: int) -> float:
        """The log-probability of a token that is listed."""
        return self.logprobs[self.ids.index(token)]

    def rank(self, token: int) -> int:
        """The place of a token that is listed among all tokens, if ranks were asked for."""
        assert self.ranks is not None
        return self.ranks[self.ids.index(token)]

    def probabilities(self, max_tv: float = 0.0) -> dict[int, float]:
        """The listed tokens' probabilities, scaled to sum to 1.

        Scaling moves the distribution by `tail_mass` in total variation: beyond `max_tv` that is BoundaryHit, so ask
        for more tokens or allow it."""
        if self.truncated and self.tail_mass > max_tv:
            raise BoundaryHit(
                f"the {len(self)} listed tokens leave out {self.tail_mass:.6f} of the mass; max_tv is {max_tv}",
                hint="ask next_dist for a larger k, or pass the max_tv that you accept",
            )
        return {token: math.exp(logprob) / self.covered for token, logprob in self}

    def sample(self, random: RandomSource, max_tv: float = 0.0) -> int:
        """One token drawn from `probabilities(max_tv)`."""
        return draw(self.probabilities(max_tv), random)


@checked
def draw(weights: dict[int, float], random: RandomSource) -> int:
    """One key, with chances in proportion to the weights, which need not sum to 1."""
    left = random.random() * sum(weights.values())
    token = -1
    for token, weight in weights.items():  # noqa: B007 (the last one catches what rounding leaves over)
        left -= weight
        if left < 0:
            break
    return token
