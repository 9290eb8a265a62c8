"""Grammars over the byte vocabulary, and texts written under them without a model."""

import json
import random
from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation, localcontext
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from loopwright.core.grammars import CompiledGrammar, Grammar, GrammarKind, GrammarState
from loopwright.grammar.compile import compile_grammar
from loopwright.grammar.vocabulary import Vocabulary
from loopwright.text.byte_tokenizer import byte_tokenizer

MAX_DIGITS = 2000
EOS = byte_tokenizer().eos_ids[0]


@cache
def byte_vocabulary() -> Vocabulary:
    return Vocabulary(byte_tokenizer(), 260)


def compiled(kind: GrammarKind, source: Any = "", vocabulary: Vocabulary | None = None) -> CompiledGrammar:
    """Over bytes. Raises BadRequest."""
    text = source if isinstance(source, str) else json.dumps(source)
    return compile_grammar(Grammar(kind, text), vocabulary or byte_vocabulary())


def is_accepted(
    kind: GrammarKind, source: Any, text: str | Sequence[int], vocabulary: Vocabulary | None = None
) -> bool:
    """Whether the text, byte by byte, is one of the grammar's."""
    state = compiled(kind, source, vocabulary).start()
    for byte in text.encode() if isinstance(text, str) else text:
        if state.is_over or byte not in ids_of(state.allowed_bits([EOS])):
            return False
        state.accept(byte)
    return state.is_over or EOS in ids_of(state.allowed_bits([EOS]))


def ids_of(bits: bytes) -> list[int]:
    return [one for one in range(8 * len(bits)) if bits[one // 8] >> one % 8 & 1]


def walk(state: GrammarState, rng: random.Random, max_tokens: int = 120) -> bytes | None:
    """A text whose every byte is chosen at random among those allowed. None if it is not whole after max_tokens.

    Towards its end the walk prefers what ends texts, or most would never."""
    text = bytearray()
    while len(text) < max_tokens and not state.is_over:
        allowed = ids_of(state.allowed_bits([EOS]))
        assert allowed, "a grammar never leaves no choice"
        assert all(one < 256 or one == EOS for one in allowed), "a control token is allowed"
        ends = [one for one in allowed if one in (EOS, *b'"]}')]
        token = rng.choice(ends if ends and rng.random() < len(text) / max_tokens else allowed)
        if token == EOS:
            return bytes(text)
        assert list(state.forced())[:1] in ([], [token]), "a forced token is the only one allowed"
        state.accept(token)
        text.append(token)
    return bytes(text) if state.is_over else None


def assert_valid(schema: Any, text: bytes) -> None:
    """That the text is JSON that the schema describes. Numbers are compared as decimals, as they are written."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    with localcontext(Context(prec=MAX_DIGITS)):  # for remainders of large numbers
        Draft202012Validator(exact).validate(json.loads(text.decode(), parse_float=_exact))


def _exact(text: str) -> int | float | Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent beyond 10^18
        return float(text)
    return int(number) if number == number.to_integral_value() and abs(number.adjusted()) < 400 else number
