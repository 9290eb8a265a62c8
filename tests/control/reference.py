"""The naive loop over plain lists that every answer must equal. Knows no pages, batches or queues."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.core.calls import Sampling

from .fake_executor import choose, mix


@dataclass
class NaiveContext:
    """Tokens that one request has run, each with the value that the fake model keeps for it."""

    values: list[int] = field(default_factory=list)

    def run(self, tokens: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Runs tokens that see all before them; returns their hidden states."""
        hiddens = []
        for token, position in zip(tokens, positions, strict=True):
            hidden = mix(token, position, *self.values, mix(token, position))
            self.values.append(hidden)
            hiddens.append(hidden)
        return hiddens

    def generate(
        self, tokens: Sequence[int], positions: Sequence[int], sampling: Sampling, max_tokens: int,
        stop_tokens: Sequence[int] = (),
    ) -> list[int]:  # fmt: skip
        """Runs tokens, then samples and runs one after another; the last one sampled does not run."""
        hidden = self.run(tokens, positions)[-1]
        position = positions[-1] + 1
        sampled = [choose(hidden, sampling, position)]
        while len(sampled) < max_tokens and sampled[-1] not in stop_tokens:
            hidden = self.run([sampled[-1]], [position])[-1]
            position += 1
            sampled.append(choose(hidden, sampling, position))
        return sampled
