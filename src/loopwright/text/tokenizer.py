"""Owns the mapping between text and token ids, and which ids are control tokens. Never splits a stream or knows chats.

Plain encoding never makes a control token, whatever the text says. Called by compose, the runtime and chat templates.

Some vocabularies (SentencePiece's) want a space before a text that nobody wrote. It is part of what the model reads, so
it is in the ids and in their text, and where it stands depends on what the text follows. Text that follows text gets
none, so that appending to a context means what it says.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

from tokenizers import Tokenizer as Library

from loopwright.core.errors import BadRequest
from loopwright.text.literals import one_of

Before: TypeAlias = Literal["nothing", "control", "text"]
"""What a piece of text follows: nothing at the start of a context, a control token, or more text."""

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>")
"""Tokens that end a turn or a document in the models we know, beside the one that the model's file names."""

TURN_MARKS = frozenset(
    (*TURN_ENDS, "<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]")
)
"""Tokens that are control tokens whatever kind the model's file gives them: who can write one can end a turn."""


CALL_MARKS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
"""Tokens that begin and divide calls of tools, where they are control tokens: they stand in the text of a turn that may
call, so that it can be read, and nowhere else."""

_SHORT_CHARS = 8192


class Encoder(Protocol):
    """The ids of any text, none of which is a control token's. Adds nothing at either end."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True)
class LibraryEncoder:
    """An Encoder over the `tokenizers` library."""

    library: Library  # has no control tokens, or treats them as plain text

    def encode(self, text: str) -> list[int]:
        if len(text) <= _SHORT_CHARS:
            return list(self.library.encode(text, add_special_tokens=False).ids)
        # The same without where each token stands in the text, which takes the interpreter's lock for long.
        return list(self.library.encode_batch_fast([text], add_special_tokens=False)[0].ids)


@dataclass(frozen=True)
class Tokenizer:
    """Text ↔ token ids of one model. Built by the functions of `load_tokenizer`."""

    encoder: Encoder
    token_bytes: tuple[bytes, ...]  # what each id adds to the text; b"" for control tokens and ids without a meaning
    controls: Mapping[str, int]  # how a control token is written → its id
    eos_ids: tuple[int, ...]  # tokens that end a turn; the model's own first
    bos_id: int | None
    add_bos: bool  # whether every context starts with `bos_id`
    chat_template: str = ""  # the Jinja source that came with the model
    space_after: frozenset[Before] = frozenset()  # what a text must follow to get a space before it
    doubles_space: bool = True  # whether it gets one also when it starts with a space
    strips_before: frozenset[int] = frozenset()  # control tokens that swallow the white space before them
    strips_after: frozenset[int] = frozenset()  # … and after them

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self.controls.values())

    @cached_property
    def call_marks(self) -> Mapping[str, int]:
        """Those of CALL_MARKS that are control tokens of this model."""
        return {text: self.controls[text] for text in CALL_MARKS if text in self.controls}

    @cached_property
    def bytes_with_marks(self) -> tuple[bytes, ...]:
        """`token_bytes`, with those of its `call_marks`."""
        written = {token_id: text.encode() for text, token_id in self.call_marks.items()}
        return (
            tuple(written.get(one, added) for one, added in enumerate(self.token_bytes))
            if written
            else self.token_bytes
        )

    def encode(self, text: str, follows: Before = "text") -> list[int]:
        """The ids of plain text: a control token written in it is text like any other. Adds no BOS.

        With `follows="text"` the ids decode to exactly `text`; elsewhere the model may want a space before it."""
        if text and follows in self.space_after and (self.doubles_space or text[0] != " "):
            text = " " + text
        try:
            return self.encoder.encode(text)
        except (TypeError, UnicodeEncodeError) as error:  # the library's word for what UTF-8 cannot write, and Python's
            raise BadRequest("the text is not valid Unicode", hint="remove lone surrogates") from error

    def encode_with_controls(self, text: str) -> list[int]:
        """The ids of a whole text from a source we trust: control tokens written in it become control tokens."""
        pieces = self._control_pattern.split(text)
        return self.encode_pieces([(piece, self.controls.get(piece) if piece else None) for piece in pieces])

    def encode_pieces(self, pieces: Sequence[tuple[str, int | None]], follows: Before = "nothing") -> list[int]:
        """The ids of plain texts (with None) and control tokens (with their ids) in a row. The first follows
        `follows`."""
        ids: list[int] = []
        last_control: int | None = None
        for place, (text, control_id) in enumerate(pieces):
            if control_id is not None:
                ids.append(control_id)
                last_control, follows = control_id, "control"
                continue
            if follows == "control" and last_control in self.strips_after:
                text = text.lstrip()
            if place + 1 < len(pieces) and pieces[place + 1][1] in self.strips_before:
                text = text.rstrip()
            if text:
                ids += self.encode(text, follows)
                follows = "text"
        return ids

    def decode(self, ids: Iterable[int], skip_controls: bool = True) -> str:
        """The text of complete ids; bytes that are not UTF-8 become U+FFFD. `skip_controls=False` writes control tokens
        out. Text that is still growing is TextStream's."""
        if skip_controls:
            return b"".join(self.token_bytes[token_id] for token_id in ids).decode(errors="replace")
        written = self._control_texts
        parts = (written[one].encode() if one in written else self.token_bytes[one] for one in ids)
        return b"".join(parts).decode(errors="replace")

    def shown(self, token_id: int) -> tuple[str, bytes]:
        """How a token is shown by itself, and what it adds to a text: a control token is written out and adds nothing;
        bytes that are no UTF-8 by themselves are `bytes:\\xf0\\x9f`."""
        if text := self.control_text(token_id):
            return text, b""
        added = self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""  # a model may have more ids
        try:
            return added.decode(), added
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in added), added

    def control_text(self, token_id: int | None) -> str:
        """How a control token is written; "" for any other id."""
        return "" if token_id is None else self._control_texts.get(token_id, "")

    @cached_property
    def _control_texts(self) -> dict[int, str]:
        return {token_id: text for text, token_id in self.controls.items()}

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        return one_of(self.controls)


def end_ids(named: Iterable[int | None], controls: Mapping[str, int]) -> tuple[int, ...]:
    """What ends a turn: the ids that a model's files name, in their order, then those of TURN_ENDS that it has."""
    known = (controls.get(text) for text in TURN_ENDS)
    return tuple(dict.fromkeys(one for one in (*named, *known) if one is not None))
