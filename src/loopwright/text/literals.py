"""Finds strings out of a fixed set in a text, the longest one at each place. Never knows what they stand for.

Called by tokenizers and chat templates. A vocabulary can have six thousand such strings and a message a million places
where one could begin, so they are tried as a tree of their characters and not one by one.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

_Tree: TypeAlias = "dict[str, _Tree]"

_END = ""  # the key which says that a string ends at this node


def one_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that splits a text around the longest of `texts` at each place, and keeps what it found. An empty one
    stands nowhere."""
    known = [text for text in texts if text]
    root: _Tree = {}
    for text in known:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[_END] = {}
    try:
        return re.compile(f"({_source(root)})" if root else "(?!)")
    except RecursionError:  # strings of thousands of characters, or hundreds that begin each other
        return re.compile(f"({'|'.join(map(re.escape, sorted(known, key=len, reverse=True)))})")


def _source(node: _Tree) -> str:
    branches = [re.escape(character) + _source(child) for character, child in node.items() if character != _END]
    if not branches:
        return ""
    if len(branches) == 1 and _END not in node:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if _END in node else "")
