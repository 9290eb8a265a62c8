"""Holds a text to a grammar by itself: of each distribution it takes the best token that its own matcher accepts.

The engine does the same faster (`generate(grammar=lark(…))`); greedily, byte by byte, both write the same. The grammar
is in Lark's notation: rules of texts, /[sets]/ of characters, names, groups and the marks | ? * +. No rule begins with
itself, and nothing that may be empty is repeated.
"""

import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

from loopwright import Context, detokenize, emit, model, vocabulary

Item = tuple[str, Any]  # ("one", characters), ("rule", name), ("many", item), or ("all" | "any", items)
Stack = tuple[Any, ...]  # what is still to come: (item, stack), or () for nothing


async def main(
    text: str = "A shopping list in JSON: ",
    grammar: str = r"""
start: object
object: "{" (pair ("," pair)*)? "}"
pair: string ":" (string | number | object | "true" | "false")
string: "\"" /[a-z ]/ /[a-z ]/* "\""
number: "-"? ("0" | /[1-9]/ /[0-9]/*)
""",
    max_tokens: int = 48,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    ctx, matcher, rng = Context(), Matcher(grammar), random.Random(seed)
    ctx.append(text)
    pieces, ends = await vocabulary(), set((await model()).eos_ids)
    stacks, written = matcher.start, list[int]()
    while len(written) < max_tokens and matcher.goes_on(stacks):
        for k in (64, len(pieces)) if temperature == 0 else (len(pieces),):
            order = list(await ctx.next_dist(k))
            if temperature > 0:  # falling scores with Gumbel noise are a draw, without putting back
                order.sort(key=lambda one: math.log(-math.log(rng.random())) - one[1] / temperature)
            fits = ((token, matcher.after(stacks, pieces[token])) for token, _ in order)
            found = next(((t, s) for t, s in fits if s or (t in ends and matcher.is_whole(stacks))), None)
            if found:
                break
        else:
            raise ValueError("no token can go on here")
        if found[0] in ends:
            break
        written.append(found[0])
        stacks = found[1]
        ctx.accept(found[0])
    emit({"tokens": len(written), "whole": matcher.is_whole(stacks)})
    return await detokenize(written)


class Matcher:
    """Follows a text through a grammar: keeps every way in which what was read may have come about."""

    def __init__(self, source: str) -> None:
        self.rules: dict[str, Item] = {}
        for line in re.sub(r"\n\s*\|", " |", source.strip()).splitlines():
            name, _, body = line.partition(":")
            if not name.strip().isidentifier():
                raise ValueError(f"grammar: {line!r} is no rule")
            self.rules[name.strip()] = either(re.findall(r'"(?:[^"\\]|\\.)*"|/\[.*?\]/|\w+|[|()?*+]', body))
        self.start: frozenset[Stack] = frozenset({(("rule", "start"), ())})

    def after(self, stacks: frozenset[Stack], piece: bytes) -> frozenset[Stack]:
        """What is left of the ways after a piece of text; nothing if it does not fit, or is none."""
        for letter in piece.decode("latin-1"):
            stacks = frozenset(rest for one in stacks for letters, rest in self.heads(one) if letter in letters)
        return stacks if piece else frozenset()

    def is_whole(self, stacks: frozenset[Stack]) -> bool:
        return any(not letters for one in stacks for letters, _ in self.heads(one))

    def goes_on(self, stacks: frozenset[Stack]) -> bool:
        return any(letters for one in stacks for letters, _ in self.heads(one))

    def heads(self, stack: Stack) -> Iterator[tuple[str, Stack]]:
        """The characters that may come next, with what follows them; none where nothing need come."""
        if not stack:
            yield "", ()
            return
        (kind, value), rest = stack
        if kind == "one":
            yield value, rest
        elif kind == "rule":
            yield from self.heads((self.rules[value], rest))
        elif kind == "any":
            for way in value:
                yield from self.heads((way, rest))
        elif kind == "many":
            yield from self.heads(rest)
            yield from self.heads((value, stack))
        else:
            for item in reversed(value):
                rest = (item, rest)
            yield from self.heads(rest)


def either(words: list[str]) -> Item:
    """Reads ways with | between them, up to the end or a closing bracket."""
    ways: list[list[Item]] = [[]]
    while words and (word := words.pop(0)) != ")":
        if word == "|":
            ways.append([])
        elif word in "?*+":
            item = ways[-1].pop()
            many: Item = ("many", item)
            ways[-1].append({"*": many, "+": ("all", (item, many)), "?": ("any", (item, ("all", ())))}[word])
        elif word == "(":
            ways[-1].append(either(words))
        elif word[0] == '"':
            ways[-1].append(("all", tuple(("one", letter) for letter in json.loads(word))))
        else:
            ways[-1].append(("one", letters_of(word[2:-2])) if word[0] == "/" else ("rule", word))
    return "any", tuple(("all", tuple(way)) for way in ways)


def letters_of(written: str) -> str:
    """The characters of a set such as a-z0-9_."""
    spans = re.findall(r"(.)-(.)|(.)", written)
    return "".join(one or "".join(map(chr, range(ord(low), ord(high) + 1))) for low, high, one in spans)
