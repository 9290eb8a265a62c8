"""Owns the mapping between text and token ids, and which ids are control tokens. Never splits a stream or knows chats.

Plain encoding never makes a control token, whatever the text says. Called by compose, the runtime and chat templates.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer as Backend

from loopwright.core.errors import BadRequest


@dataclass(frozen=True)
class Tokenizer:
    """Text ↔ token ids of one model. Built by the functions of `load_tokenizer`."""

    backend: Backend  # has no control tokens, or treats them as plain text
    token_bytes: tuple[bytes, ...]  # what each id adds to the text; b"" for control tokens and ids without a meaning
    controls: Mapping[str, int]  # how a control token is written → its id
    eos_ids: tuple[int, ...]  # tokens that end a turn; the model's own first
    bos_id: int | None
    add_bos: bool  # whether every context starts with `bos_id`
    chat_template: str = ""  # the Jinja source that came with the model

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self.controls.values())

    def encode(self, text: str) -> list[int]:
        """The ids of plain text: a control token written in it is text like any other. Adds no BOS."""
        try:
            return list(self.backend.encode(text, add_special_tokens=False).ids)
        except TypeError as error:  # what the library calls a string that UTF-8 cannot write
            raise BadRequest("the text is not valid Unicode", hint="remove lone surrogates") from error

    def encode_with_controls(self, text: str) -> list[int]:
        """The ids of text from a source we trust: control tokens written in it become control tokens."""
        ids: list[int] = []
        for piece in self._control_pattern.split(text):
            if (control_id := self.controls.get(piece)) is not None:
                ids.append(control_id)
            elif piece:
                ids += self.encode(piece)
        return ids

    def decode(self, ids: Iterable[int], skip_controls: bool = True) -> str:
        """The text of complete ids; bytes that are not UTF-8 become U+FFFD. `skip_controls=False` writes control tokens
        out. Text that is still growing is TextStream's."""
        if skip_controls:
            return b"".join(self.token_bytes[token_id] for token_id in ids).decode(errors="replace")
        written = self._control_texts
        parts = (written[one].encode() if one in written else self.token_bytes[one] for one in ids)
        return b"".join(parts).decode(errors="replace")

    def control_text(self, token_id: int | None) -> str:
        """How a control token is written; "" for any other id."""
        return "" if token_id is None else self._control_texts.get(token_id, "")

    @cached_property
    def _control_texts(self) -> dict[int, str]:
        return {token_id: text for text, token_id in self.controls.items()}

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        return one_of(self.controls)


def one_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that splits a text around the longest of `texts` at each place, and keeps what it found."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if longest_first else "(?!)")
