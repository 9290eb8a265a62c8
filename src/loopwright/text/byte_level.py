"""Owns the byte-level alphabet: how GPT-2's family of vocabularies writes bytes as characters. Never knows a model.

Called by the functions that load tokenizers. Source: github.com/openai/gpt-2, src/encoder.py.
"""

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)

CHARACTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
"""Byte → character. A printable byte of Latin-1 stands for itself, the other 68 for the characters from U+0100 on."""

_TO_LATIN_1 = {ord(character): byte for byte, character in CHARACTERS.items()}


def bytes_of(piece: str) -> bytes:
    """The bytes that a piece of the vocabulary stands for; a piece outside the alphabet stands for its own UTF-8."""
    try:
        return piece.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode(errors="replace")
