"""Reads the regular expressions that users write and writes them anew for llguidance. Never runs one.

Called for patterns of JSON schemas and for grammars of kind "regex". The dialect is the part of ECMA-262 that JSON
Schema (2020-12, section 6.4) recommends: what engines read differently is either refused, or narrowed to what all of
them accept (`\\s` to the characters that ECMA-262, Python and Rust all call white space, and so on).
"""

import re
from dataclasses import dataclass

from loopwright.core.errors import BadRequest

MAX_GROUP_DEPTH = 64
MAX_REPEATS = 65535

_ANY_TEXT = "(?s:.*)"
_SPACES = r"\t\n\x0b\x0c\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_MAYBE_SPACES = _SPACES + r"\x1c-\x1f\u0085\ufeff"
_WORD = "0-9A-Za-z_"
_MAYBE_WORD = _WORD + r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\u200c\u200d"

# As items of a class. What surely matches, whoever reads the pattern; and, for classes that are negated, what might.
_SURE = {
    "d": "0-9", "D": r"\P{Nd}", "w": _WORD, "W": f"[^{_MAYBE_WORD}]", "s": _SPACES, "S": f"[^{_MAYBE_SPACES}]",
}  # fmt: skip
_MAYBE = {
    "d": r"\p{Nd}", "D": "[^0-9]", "w": _MAYBE_WORD, "W": f"[^{_WORD}]", "s": _MAYBE_SPACES, "S": f"[^{_SPACES}]",
}  # fmt: skip
_ANY_CHARACTER = r"^\n\r\u2028\u2029"
_UNWRITABLE = r"\x00-\x07\x0b\x0e-\x1f\x7f"  # no string of JSON holds these here: they would need a \u escape
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(,([0-9]*))?\}")
_CODE_POINT = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_]+(=[A-Za-z_]+)?\}")


def search_pattern(pattern: str) -> str:
    """For llguidance: the texts in which `pattern` matches somewhere, as JSON Schema reads it."""
    return _Reader(pattern, is_search=True).read()


def whole_pattern(pattern: str) -> str:
    """For llguidance: the texts that `pattern` matches as a whole."""
    return _Reader(pattern, is_search=False).read()


def is_unwritable(character: str) -> bool:
    """Whether JSON, as it is written here, has no way to write the character."""
    return (character < " " and character not in "\b\t\n\f\r") or character == "\x7f"


@dataclass(slots=True)
class _Reader:
    """Recursive descent over one pattern. Each method reads a part and returns it in llguidance's dialect."""

    pattern: str
    is_search: bool
    at: int = 0

    def read(self) -> str:
        alternatives = [self._top_alternative()]
        while self._take("|"):
            alternatives.append(self._top_alternative())
        if self.at < len(self.pattern):
            raise self._error("')' closes no group", self.at)
        joined = "|".join(alternatives)
        return f"^(?:{joined})$" if self.is_search else f"(?:{joined})"

    def _top_alternative(self) -> str:
        around = _ANY_TEXT if self.is_search else ""
        before = "" if self._take("^") else around
        body = self._sequence(depth=0)
        after = "" if self._take("$") else around
        if self._peek() not in ("", "|", ")"):
            raise self._error("'$' may only stand at the end of the pattern or of an alternative", self.at - 1)
        return before + body + after

    def _sequence(self, depth: int) -> str:
        parts: list[str] = []
        while self._peek() not in ("", "|", ")", "$"):
            parts.append(self._atom(depth) + self._quantifier())
        return "".join(parts)

    def _atom(self, depth: int) -> str:
        start, character = self.at, self.pattern[self.at]
        self.at += 1
        match character:
            case ".":
                return self._one_of(_ANY_CHARACTER)
            case "[":
                return self._class(start)
            case "(":
                return self._group(start, depth)
            case "\\":
                return self._escape(start)
            case "^":
                raise self._error("'^' may only stand at the start of the pattern or of an alternative", start)
            case "*" | "+" | "?" | "{":
                raise self._error(f"there is nothing before {character!r} that it could repeat", start)
        return self._character(character, start)

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self.pattern, self.at)
        if found is None:
            return ""
        least, most = found[1], found[3] or found[1]
        if least is not None and (max(len(least), len(most)) > 5 or int(most) > MAX_REPEATS or int(least) > int(most)):
            raise self._error(f"{found[0]} must rise and end at {MAX_REPEATS} at most", self.at)
        self.at = found.end()
        self._take("?")  # lazy: the same texts match
        if self._peek() in ("*", "+", "?", "{"):
            raise self._error(f"{self._peek()!r} follows another quantifier", self.at)
        return found[0]

    def _group(self, start: int, depth: int) -> str:
        if depth == MAX_GROUP_DEPTH:
            raise self._error(f"groups are nested deeper than {MAX_GROUP_DEPTH}", start)
        if self._peek() == "?" and not self._take("?:"):
            raise self._error("of groups with '(?' only '(?:' is known; there is no looking around", start)
        alternatives = [self._sequence(depth + 1)]
        while self._take("|"):
            alternatives.append(self._sequence(depth + 1))
        if self._peek() == "$":
            raise self._error("'$' may not stand inside a group", self.at)
        if not self._take(")"):
            raise self._error("'(' is never closed", start)
        return f"(?:{'|'.join(alternatives)})"

    def _escape(self, start: int) -> str:
        letter = self._peek()
        if letter and letter in _SURE:
            self.at += 1
            return self._one_of(_SURE[letter])
        if found := _PROPERTY.match(self.pattern, self.at):
            self.at = found.end()
            return self._one_of("\\" + found[0])
        return self._character(self._escaped_character(start), start)

    def _escaped_character(self, start: int) -> str:
        """The character that an escape stands for; the backslash is read already."""
        if found := _CODE_POINT.match(self.pattern, self.at):
            code = int(found[1] or found[2] or found[3], 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"{code:#x} is no character", start)
            self.at = found.end()
            return chr(code)
        letter = self._peek()
        self.at += 1
        if letter and letter in "^$\\.*+?()[]{}|/-":
            return letter
        if letter and letter in _CONTROLS:
            return _CONTROLS[letter]
        if not letter:
            raise self._error("the pattern ends in the middle of an escape", start)
        if letter.isalnum():
            raise self._error(f"'\\{letter}' is not supported", start)
        raise self._error(f"'\\{letter}' is no escape; write {letter!r} by itself", start)

    def _class(self, start: int) -> str:
        is_negated = self._take("^")
        items: list[str] = []
        while not self._take("]"):
            items.append(self._class_item(start, is_negated))
        if not items:
            raise self._error("an empty class", start)
        return self._one_of(("^" if is_negated else "") + "".join(items))

    def _one_of(self, items: str) -> str:
        # llguidance drops what JSON cannot write from a text, instead of the text that holds it.
        return f"[[{items}]&&[^{_UNWRITABLE}]]" if self.is_search else f"[{items}]"

    def _character(self, character: str, start: int) -> str:
        if self.is_search and is_unwritable(character):
            raise self._error(f"no JSON string has the character {character!r} here", start)
        return _literal(character)

    def _class_item(self, start: int, is_negated: bool) -> str:
        at = self.at
        first = self._class_character(start, is_negated)
        if self._peek() != "-" or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return _literal(first) if len(first) == 1 else first
        self.at += 1
        last = self._class_character(start, is_negated)
        if len(first) > 1 or len(last) > 1:
            raise self._error("a range goes from one character to another", at)
        if first > last:
            raise self._error(f"the range {first!r} to {last!r} is empty", at)
        return f"{_literal(first)}-{_literal(last)}"

    def _class_character(self, start: int, is_negated: bool) -> str:
        """One character of a class; or, longer than that, the items that an escape stands for."""
        character, at = self._peek(), self.at
        if not character:
            raise self._error("'[' is never closed", start)
        self.at += 1
        if character == "[":
            raise self._error("'[' in a class must be escaped", at)
        if character != "\\":
            return character
        letter = self._peek()
        if letter and letter in _SURE:
            self.at += 1
            return (_MAYBE if is_negated else _SURE)[letter]
        if found := _PROPERTY.match(self.pattern, self.at):
            self.at = found.end()
            return "\\" + found[0]
        return self._escaped_character(at)

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self, text: str) -> bool:
        is_next = self.pattern.startswith(text, self.at)
        if is_next:
            self.at += len(text)
        return is_next

    def _error(self, what: str, at: int) -> BadRequest:
        shown = self.pattern if len(self.pattern) <= 80 else self.pattern[:77] + "..."
        return BadRequest(f"regular expression {shown!r}, character {at}: {what}")


def _literal(character: str) -> str:
    """A character as itself, inside a class and outside."""
    if character.isalnum() and character.isascii():
        return character
    return f"\\x{{{ord(character):x}}}"
