"""What a text can be held to, as calls ask for it, and the seam between control and grammars. Never compiles one.

The seam is implemented by the grammar layer, and by a fake in tests. Compiling runs elsewhere; a state is used by one
segment only.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from loopwright.core.ids import TokenId

if TYPE_CHECKING:
    from concurrent.futures import Future


MAX_GRAMMAR_BYTES = 256 << 10

GrammarKind: TypeAlias = Literal["json_schema", "json_object", "regex", "lark", "choice", "tool_calls"]


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a text must be, as a whole. Enforced, or refused when the call's turn comes; docs/grammars.md says
    what each kind takes.

    `source` is a JSON Schema; nothing, for any JSON object; a regular expression; a Lark grammar; a JSON list of
    strings, one of which the text will be; or, for tool_calls, {format, tools: [{name, parameters}], choice,
    parallel, answer}: docs/tools-while-generating.md."""

    kind: GrammarKind
    source: str = ""


ToolFormat: TypeAlias = Literal["hermes", "smollm2", "llama3_json", "gemma", "mistral", "mistral_args", "pythonic"]
"""How a family of models writes calls of tools: docs/tools-while-generating.md."""


class CallsInText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A text may hold calls of tools, written in that format; with `is_answer_held` it is calls or else an answer that
    is held to a form of its own."""

    format: ToolFormat
    is_answer_held: bool = False


class HeldText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds what follows the last token to a grammar, of whose text `text` stands already. Where it is whole, one of
    `stop_tokens` may follow, and nothing else once nothing may."""

    grammar: Grammar
    text: tuple[TokenId, ...] = ()
    stop_tokens: tuple[TokenId, ...] = ()


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
