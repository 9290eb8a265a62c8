"""Contexts with views as a dense mask says them: every token keeps the set that it may see. For the tests of views.

Never looks at pages, places or what is cached; only the oracle's forward with a mask.
"""

import math
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from loopwright.engine.oracle import Oracle
from system_rig import byte_oracle

PAGE = 16


@cache
def oracle() -> Oracle:
    return byte_oracle()


@dataclass
class Eyes:
    """What a token may see, but for itself."""

    hidden: set[int] = field(default_factory=set)
    size: int | None = None
    sinks: int = 0

    def sees(self, own: int, other: int) -> bool:
        return other <= own and bool(self.row(own)[other])

    def row(self, own: int) -> np.ndarray:
        """[own + 1]: whether token `own` sees each token up to itself."""
        seen = np.ones(own + 1, dtype=bool)
        if self.size is not None:
            border = max(0, PAGE * ((own + 1 - self.size) // PAGE))
            seen[PAGE * math.ceil(self.sinks / PAGE) : border] = False
        seen[[one for one in self.hidden if one < own]] = False
        return seen


@dataclass
class DenseContext:
    """One context, token by token."""

    tokens: list[int] = field(default_factory=list)
    eyes: list[Eyes] = field(default_factory=list)
    now: Eyes = field(default_factory=Eyes)

    def append(self, ids: list[int]) -> None:
        self.tokens += ids
        self.eyes += [self.now] * len(ids)

    def place(self, ids: list[int], spans: list[tuple[int, int]] | None) -> None:
        if spans is not None:
            seen = {token for start, end in spans for token in range(start, end)}
            self.now = Eyes(**{**vars(self.now), "hidden": set(range(len(self.tokens))) - seen})
        self.append(ids)

    def look(self, **changes: Any) -> None:
        self.now = Eyes(**{**vars(self.now), **changes})
        if self.eyes:
            self.eyes[-1] = self.now

    def hide(self, start: int, end: int) -> None:
        self.look(hidden=self.now.hidden | set(range(start, end)))

    def attend(self, spans: list[tuple[int, int]]) -> None:
        seen = {token for start, end in spans for token in range(start, end)}
        self.look(hidden=set(range(len(self.tokens))) - seen)

    def window(self, size: int | None, sinks: int) -> None:
        self.look(size=size, sinks=sinks if size is not None else 0)

    def forget(self, gone: set[int]) -> None:
        left = [token for token in range(len(self.tokens)) if token not in gone]
        new_number = {old: new for new, old in enumerate(left)}

        def moved(eyes: Eyes) -> Eyes:
            hidden = {new_number[one] for one in eyes.hidden if one in new_number}
            return Eyes(hidden, eyes.size, eyes.sinks)

        self.tokens = [self.tokens[token] for token in left]
        self.eyes = [moved(self.eyes[token]) for token in left]
        self.now = moved(self.now)
        self.look()

    def truncate(self, num_tokens: int) -> None:
        self.forget(set(range(num_tokens, len(self.tokens))))

    def fork(self) -> "DenseContext":
        return deepcopy(self)

    @property
    def num_seen(self) -> int:
        """How many tokens before it the last one sees."""
        last = len(self.tokens) - 1
        return sum(self.now.sees(last, other) for other in range(last))

    @property
    def is_last_hidden(self) -> bool:
        return len(self.tokens) - 1 in self.now.hidden

    @property
    def is_exact(self) -> bool:
        """Whether nothing is hidden from anybody."""
        rows = [[eyes.sees(own, other) for other in range(own + 1)] for own, eyes in enumerate(self.eyes)]
        return all(all(row) for row in rows) and not any(eyes.hidden for eyes in self.eyes)

    def logprobs(self) -> np.ndarray:
        """[num_tokens, vocab_size]: what follows each token."""
        size = len(self.tokens)
        mask = np.zeros((size, size), dtype=bool)
        for own, eyes in enumerate(self.eyes):
            mask[own, : own + 1] = eyes.row(own)
        logits = oracle().logits(self.tokens, mask=torch.from_numpy(mask)).double().numpy()
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def generate(self, num_tokens: int) -> tuple[list[int], list[float]]:
        """Greedily."""
        logprobs = []
        for _ in range(num_tokens):
            row = self.logprobs()[-1]
            self.append([int(row.argmax())])
            logprobs.append(float(row.max()))
        return self.tokens[-num_tokens:], logprobs

    def verify(self, drafts: list[int]) -> list[int]:
        """The drafts that it would have said itself, and one more."""
        said: list[int] = []
        while said == drafts[: len(said)] and len(said) <= len(drafts):
            said += self.generate(1)[0]
        return said

    def score(self, ids: list[int]) -> list[float]:
        longer = self.fork()
        longer.append(ids)
        rows = longer.logprobs()[len(self.tokens) - 1 : -1]
        return [float(row[one]) for row, one in zip(rows, ids, strict=True)]
