"""The seam between control and grammars. Never compiles one, and knows no library that does.

Implemented by the grammar layer, and by a fake in tests. Compiling runs elsewhere; a state is used by one segment only.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from loopwright.core.calls import Grammar

if TYPE_CHECKING:
    from concurrent.futures import Future


class GrammarState(Protocol):
    """How far one text has come. Each method raises LimitExceeded when the grammar needs more work than a step may."""

    @property
    def is_over(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        ...

    def accept(self, token_id: int) -> None:
        """Takes the next token, which must be allowed."""
        ...

    def take(self, token_ids: Sequence[int]) -> int:
        """Takes tokens up to the first that is not allowed; returns how many."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that are sure to come next, as the tokenizer would write their text; does not take them. Never
        the one with which the text would be over: that one is sampled like any other."""
        ...

    def allowed_bits(self, end_ids: Collection[int]) -> bytes:
        """Which tokens may follow: one bit each, as in ForwardRow. `end_ids` may where the text is whole. Raises
        BadRequest if there is none."""
        ...


class CompiledGrammar(Protocol):
    """A grammar for one vocabulary, shared by all who use it."""

    def start(self) -> GrammarState:
        """The state of an empty text."""
        ...


class GrammarCompiler(Protocol):
    """Compiles off the hot path."""

    def compile(self, grammar: Grammar) -> "Future[CompiledGrammar]":
        """Returns at once. The future fails with BadRequest for a grammar that cannot be enforced as it is written."""
        ...
