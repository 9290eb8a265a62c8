"""How many values a JSON text has, and how deeply they stand in each other, before it is decoded. Never decodes.

Goes through a text piece by piece at the speed of `bytes.split`, so that whoever reads a large one can let others in
between. Used by `body`.
"""

from collections.abc import Iterator
from itertools import accumulate

PIECE_BYTES = 64 << 10
"""Two or three milliseconds' worth of the worst text."""

_MARKS = b"[]{},"
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class Shape:
    """Takes the pieces of one text in order. Of what is no JSON it says anything."""

    def __init__(self) -> None:
        self.num_values = 0  # elements of lists and fields of objects, and at least 1 for each of both
        self.max_depth = 0  # lists and objects in each other
        self._depth = 0
        self._is_in_string = False
        self._is_escaping = False  # the last piece ended with a backslash that escapes what comes

    @staticmethod
    def may_exceed(text: bytes, max_values: int, max_depth: int) -> bool:
        """Whether a look is worth while; what stands in strings counts here too."""
        num_opened = text.count(b"[") + text.count(b"{")
        return num_opened > max_depth or num_opened + text.count(b",") > max_values

    @staticmethod
    def pieces(text: bytes) -> Iterator[bytes]:
        return (text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES))

    @classmethod
    def of(cls, text: bytes) -> "Shape":
        """Of a whole text, at once."""
        shape = cls()
        for piece in cls.pieces(text):
            shape.push(piece)
        return shape

    def push(self, piece: bytes) -> None:
        if self._is_escaping:
            piece = piece[1:]
        piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        self._is_escaping = piece.endswith(b"\\")
        parts = piece.split(b'"')
        marks = b"".join(parts[self._is_in_string :: 2]).translate(None, _NO_MARKS)
        self._is_in_string ^= len(parts) % 2 == 0
        self.num_values += marks.count(b",") + marks.count(b"[") + marks.count(b"{")
        depths = list(accumulate(map(_STEPS.__getitem__, marks.translate(None, b",")), initial=self._depth))
        self._depth, self.max_depth = depths[-1], max(self.max_depth, *depths)
