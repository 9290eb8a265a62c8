"""Owns compiled grammars and the states of texts that follow them. Never checks a source, never starts a thread.

Made by the compiler, used by control through `core.grammars`. A state belongs to one segment: none is shared, and a
segment of a fork starts a new one.
"""

from collections.abc import Collection, Sequence

from llguidance import LLMatcher

from loopwright.core.errors import BadRequest, InternalError, LimitExceeded
from loopwright.grammar.vocabulary import Vocabulary

_DEAD_END = (
    "the text cannot go on here and is not whole: the grammar contradicts itself, or needs what no token can write"
)


class TokenGrammar:
    """Implements core.grammars.CompiledGrammar. `matcher` has taken nothing yet, and never does. `marks` are control
    tokens that the grammar may let through."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher, marks: Collection[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._known_bits = vocabulary.text_bits
        for token_id in marks:
            self._known_bits |= 1 << token_id

    def start(self) -> "MatcherState":
        return MatcherState(self._vocabulary, self._matcher.deep_copy(), self._known_bits)


class MatcherState:
    """Implements core.grammars.GrammarState."""

    __slots__ = ("_known_bits", "_matcher", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher, known_bits: int) -> None:
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._known_bits = known_bits  # bit i: token i may stand in such a text at all

    @property
    def is_over(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def has_text(self) -> bool:
        """Whether any token but the end may follow."""
        bits = int.from_bytes(self._matcher.compute_bitmask(), "little")
        self._check()
        return bool(bits & self._known_bits)

    def accept(self, token_id: int) -> None:
        if not self._matcher.consume_token(token_id):
            self._check()
            raise InternalError(f"token {token_id} is not one that the grammar allows here")

    def validated(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens may follow, one after the other."""
        num_valid = self._matcher.validate_tokens(list(token_ids))
        self._check()
        return num_valid

    def take(self, token_ids: Sequence[int]) -> int:
        num_valid = self.validated(token_ids)
        self._matcher.consume_tokens(list(token_ids[:num_valid]))
        self._check()
        return num_valid

    def forced(self) -> Sequence[int]:
        token_ids = self._matcher.compute_ff_tokens()
        self._check()
        if not token_ids:
            return ()
        is_valid = self._matcher.consume_tokens(token_ids)
        self._check()
        assert is_valid, "forced tokens are allowed"
        ends = self._matcher.is_stopped()
        self._matcher.rollback(len(token_ids))
        return token_ids[:-1] if ends else token_ids

    def allowed_bits(self, end_ids: Collection[int]) -> bytes:
        vocabulary = self._vocabulary
        bits = int.from_bytes(self._matcher.compute_bitmask(), "little")
        self._check()
        is_whole = bits >> vocabulary.end_id & 1
        bits &= self._known_bits
        if is_whole:
            for token_id in end_ids:
                bits |= 1 << token_id
        if not bits:
            raise BadRequest(_DEAD_END, field="grammar")
        return bits.to_bytes(vocabulary.num_mask_bytes, "little")

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        if self._matcher.get_error().startswith("NoExtension"):
            raise BadRequest(_DEAD_END, field="grammar")
        raise LimitExceeded(
            f"following the grammar needs more work than a step may: {first_line(self._matcher.get_error())}",
            field="grammar",
            hint="make it less ambiguous, or its repetitions and patterns smaller",
        )


def first_line(message: str) -> str:
    """Of a message of llguidance's, what is said before it shows the place."""
    return message.strip().split("\n", 1)[0]
