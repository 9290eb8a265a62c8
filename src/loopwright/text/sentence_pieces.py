"""Encodes with a SentencePiece vocabulary that merges by score (type BPE), as Llama 2, Mistral and Gemma have.

Owns the merge loop and how such pieces are written: '▁' is a space, '<0x0A>' a byte. Never knows control tokens: they
are not in its vocabulary. Called by the functions that load tokenizers. Why not the `tokenizers` library: ADR 6.
Source: github.com/google/sentencepiece, src/bpe_model.cc.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush

from loopwright.text.literals import one_of

SPACE = "▁"

MAX_CACHED_WORD = 32
MAX_CACHED_WORDS = 65536

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_WORD = re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")


class SentencePieceEncoder:
    """An Encoder. `pieces`: written piece → id. `scores` by id: of all neighbours, those merge first whose joint piece
    has the highest score, the leftmost of equals. `byte_ids`: the id of each byte, for characters that are no piece.
    `whole`: texts that are one token wherever they stand."""

    def __init__(
        self, pieces: Mapping[str, int], scores: Sequence[float], byte_ids: Sequence[int], whole: Mapping[str, int]
    ) -> None:
        self._ids = pieces
        self._ranks = {piece: -scores[one] for piece, one in pieces.items()}
        self._byte_ids = byte_ids
        self._whole = whole
        self._whole_pattern = one_of(whole)
        # Where no piece goes on after a space that follows something else, no merge can cross that place.
        self._has_words = not any(SPACE in piece.lstrip(SPACE) for piece in pieces)
        self._merge_cached = lru_cache(MAX_CACHED_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Raises UnicodeEncodeError for a text that UTF-8 cannot write."""
        text.encode()
        ids: list[int] = []
        for place, part in enumerate(self._whole_pattern.split(text)):
            if place % 2:
                ids.append(self._whole[part])
                continue
            for word in self._words(part.replace(" ", SPACE)):
                ids += self._merge_cached(word) if len(word) <= MAX_CACHED_WORD else self._merge(word)
        return ids

    def _words(self, written: str) -> list[str]:
        return _WORD.findall(written) if self._has_words else [written] if written else []

    def _merge(self, word: str) -> tuple[int, ...]:
        return tuple(one for piece in _merged(word, self._ranks) for one in self._ids_of(piece))

    def _ids_of(self, piece: str) -> Sequence[int]:
        one = self._ids.get(piece)
        return (one,) if one is not None else [self._byte_ids[byte] for byte in piece.encode()]


def piece_bytes(piece: str) -> bytes:
    """The bytes that a written piece adds to the text."""
    byte = byte_of(piece)
    return piece.replace(SPACE, " ").encode() if byte is None else bytes([byte])


def byte_of(piece: str) -> int | None:
    """The byte that a piece like '<0x0A>' stands for; None for any other piece."""
    if not piece.startswith("<0x"):  # of a quarter of a million pieces, few get further
        return None
    found = _BYTE.fullmatch(piece)
    return int(found[1], 16) if found else None


def _merged(word: str, ranks: Mapping[str, float]) -> Iterator[str]:
    size = len(word)
    # A symbol is known by its start: where it ends (0: merged into an earlier one), and where the one before starts.
    ends = list(range(1, size + 1))
    before = list(range(-1, size - 1))
    queue = [
        (rank, start, start + 1, start + 2)
        for start in range(size - 1)
        if (rank := ranks.get(word[start : start + 2])) is not None
    ]
    heapify(queue)
    while queue:
        _, left, right, end = heappop(queue)
        if ends[left] != right or ends[right] != end:
            continue  # one of the two has merged since
        ends[left], ends[right] = end, 0
        if (start := before[left]) >= 0 and (rank := ranks.get(word[start:end])) is not None:
            heappush(queue, (rank, start, left, end))
        if end < size:
            before[end] = left
            if (rank := ranks.get(word[left : ends[end]])) is not None:
                heappush(queue, (rank, left, end, ends[end]))
    start = 0
    while start < size:
        yield word[start : ends[start]]
        start = ends[start]
