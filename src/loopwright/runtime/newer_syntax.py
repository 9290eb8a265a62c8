"""Finds f-strings that only Python 3.12 reads, in an interpreter that reads them. Never parses a program itself."""

import io
import sys
import tokenize
from collections.abc import Iterator


def nested_quotes(source: str) -> Iterator[tuple[int, int]]:
    """Line and column of every string inside an f-string that has the f-string's own quotes. Nothing before 3.12:
    there it is a syntax error."""
    if sys.version_info < (3, 12):
        return
    quotes: list[str] = []  # of the f-strings that are open
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "STRING"):
            quote = token.string.lstrip("rRbBuUfF")
            quote = quote[:3] if quote[:3] in ('"""', "'''") else quote[:1]
            if quote in quotes:
                yield token.start
            if kind == "FSTRING_START":
                quotes.append(quote)
        elif kind == "FSTRING_END":
            quotes.pop()
