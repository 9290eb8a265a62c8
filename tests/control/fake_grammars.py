"""Grammars that a test spells out: what may stand in each place of a text. Never parses anything."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

from loopwright.core.errors import LimitExceeded
from loopwright.core.grammars import CompiledGrammar, Grammar

from .fake_executor import VOCAB_SIZE


class Places:
    """Texts with one of `choices[n]` in place n; whole at their end, and before any place in `optional_from`."""

    def __init__(
        self, *choices: Collection[int], optional_from: int | None = None, fails_at: int | None = None
    ) -> None:
        self.choices = choices
        self.optional_from = len(choices) if optional_from is None else optional_from
        self.fails_at = fails_at

    def start(self) -> "PlacesState":
        return PlacesState(self)


class PlacesState:
    def __init__(self, places: Places) -> None:
        self._places = places
        self.taken: list[int] = []

    @property
    def is_over(self) -> bool:
        return len(self.taken) == len(self._places.choices)

    def accept(self, token_id: int) -> None:
        assert token_id in self._places.choices[len(self.taken)], f"{token_id} is not allowed after {self.taken}"
        if len(self.taken) == self._places.fails_at:
            raise LimitExceeded("the grammar is too much work here", field="grammar")
        self.taken.append(token_id)

    def take(self, token_ids: Sequence[int]) -> int:
        for place, token_id in enumerate(token_ids):
            if self.is_over or token_id not in self._places.choices[len(self.taken)]:
                return place
            self.taken.append(token_id)
        return len(token_ids)

    def forced(self) -> Sequence[int]:
        tokens: list[int] = []
        for place in range(len(self.taken), len(self._places.choices) - 1):
            choices = self._places.choices[place]
            if len(choices) > 1 or place >= self._places.optional_from:
                break
            tokens += choices
        return tokens

    def allowed_bits(self, end_ids: Collection[int]) -> bytes:
        allowed = set(self._places.choices[len(self.taken)])
        if len(self.taken) >= self._places.optional_from:
            allowed |= set(end_ids)
        return sum(1 << one for one in allowed).to_bytes(VOCAB_SIZE // 8, "little")


class Respelled(Places):
    """Places whose forced tokens are written otherwise by who comes upon them in the middle; by the place."""

    def __init__(self, *choices: Collection[int], spelled: Mapping[int, Sequence[int]]) -> None:
        super().__init__(*choices)
        self.spelled = spelled

    def start(self) -> "RespelledState":
        return RespelledState(self)


class RespelledState(PlacesState):
    def __init__(self, places: Respelled) -> None:
        super().__init__(places)
        self._spelled = places.spelled

    def forced(self) -> Sequence[int]:
        return self._spelled.get(len(self.taken), ())


class FakeCompiler:
    """Compiles a grammar when the test says so; its source is its name."""

    def __init__(self, **ready: CompiledGrammar) -> None:
        self.futures: dict[str, Future[CompiledGrammar]] = {}
        for name, grammar in ready.items():
            self.finish(name, grammar)

    def compile(self, grammar: Grammar) -> "Future[CompiledGrammar]":
        return self.futures.setdefault(grammar.source, Future())

    def finish(self, name: str, grammar: CompiledGrammar | Exception) -> None:
        future = self.futures.setdefault(name, Future())
        if isinstance(grammar, Exception):
            future.set_exception(grammar)
        else:
            future.set_result(grammar)
