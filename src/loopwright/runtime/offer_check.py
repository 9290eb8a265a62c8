"""Finds what a program's metadata asks for and a server so configured would not give. Part of `program_check`.

Never asks a server. Whether an MCP server has a tool of some name, only that server knows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from loopwright.runtime.limits import Limits
from loopwright.runtime.program import Metadata

Said: TypeAlias = tuple[int, str, str]
"""The line, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server gives: the most of each limit, its own tools, and whose others it has."""

    caps: Limits
    tools: frozenset[str]
    mcp_servers: frozenset[str]


def check_offer(source: str, metadata: Metadata, offer: Offer) -> Iterator[Said]:
    default, capped = Limits(), metadata.limits.capped(offer.caps)
    for name in Limits.__struct_fields__:
        asked, given = getattr(metadata.limits, name), getattr(capped, name)
        if asked > given and asked != getattr(default, name):
            message = f"limits.{name} is {asked}; on this server it is {given}"
            yield _line(source, name), message, f"ask for less, or raise runtime.caps.{name}"
    for tool in metadata.permissions.tools:
        server, is_of_server, _ = tool.partition(".")
        known = offer.mcp_servers if is_of_server else offer.tools
        if server not in known:
            kind = f"MCP server {server!r}" if is_of_server else f"tool {tool!r}"
            hint = f"it has {', '.join(sorted(known)) or 'none'}; [tools] of its configuration lists them"
            yield _line(source, tool), f"permissions.tools has {tool!r}; this server has no {kind}", hint


def _line(source: str, word: str) -> int:
    """The metadata's first line that has the word."""
    lines = enumerate(source.splitlines(), 1)
    pattern = re.compile(rf"#.*(?<![\w.]){re.escape(word)}(?![\w])")
    return next((number for number, line in lines if pattern.match(line)), 1)
