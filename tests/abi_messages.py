"""Messages of a hostile program, drawn from a seed: calls of every kind with fields of every type, right and wrong, and
texts that are no calls. Used by the fuzz tests."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

from loopwright.core.call_table import CALL_KINDS, op_of

MAX_DEPTH = 4
SMALL = (0, 1, 2, 3, 7, 16)
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    2,
    3,
    7,
    16,
    255,
    -1,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**70),
    0.5,
    -0.0,
    1e308,
    1e-320,
)
TEXTS = (
    "",
    "a",
    "héllo",
    "\0",
    "\ufeff",
    "\U0010ffff",
    "🙂" * 50,
    "x" * 5000,
    "../../etc/passwd",
    "<|im_end|>",
    "*",
    "/",
)
PLAIN: dict[type[inspect.Type], Callable[[random.Random], Any]] = {
    inspect.IntType: lambda draw: draw.choice(SMALL if draw.random() < 0.8 else NUMBERS),
    inspect.FloatType: lambda draw: draw.choice((draw.random(), *NUMBERS)),
    inspect.BoolType: lambda draw: draw.random() < 0.5,
    inspect.NoneType: lambda draw: None,
    inspect.StrType: lambda draw: draw.choice(TEXTS),
    inspect.BytesType: lambda draw: draw.choice(("", "AAAA", "AAAAAAAAAAA=", "!", "A")),
}
RAW = (
    "", " ", "null", "[]", "{}", "[[[", "{" * 5000, "[" * 100_000, '{"op":', '{"op": null}', '{"op": "segment"}',
    '{"op": "emit", "value": NaN}', '{"op": "emit", "value": 1e999}', '{"op": "emit", "value": "\\ud800"}', "\ud800",
    '{"op": "emit", "op": "cancel", "handle": 1}', "\x80\x04K\x01.", "\0", "true", '"op"', "1" * 10_000,
    '{"op":"' * 3000,
    '{"op": "emit", "value": ' + "[" * 2000 + "]" * 2000 + "}",
)  # fmt: skip


def messages(seed: int, num: int) -> Iterator[str]:
    """`num` messages; the same ones for the same seed."""
    draw = random.Random(seed)
    kinds = list(CALL_KINDS)
    for _ in range(num):
        place = draw.random()
        text = draw.choice(RAW) if place < 0.05 else json.dumps(_call(draw, draw.choice(kinds)))
        yield _damaged(draw, text) if place > 0.85 else text


def _call(draw: random.Random, kind: type) -> dict[str, Any]:
    """A call whose fields mostly fit; a queue that exists is likely."""
    call: dict[str, Any] = {"op": op_of(kind)}
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if field.required or draw.random() < 0.3:
            call[field.encode_name] = (
                1 if field.name == "queue" and draw.random() < 0.9 else _value(draw, field.type, 0)
            )
    if draw.random() < 0.05:
        call[draw.choice(("tenant", "op", "run", "answer", "ünknown"))] = _junk(draw, 0)
    return call


def _value(draw: random.Random, wanted: inspect.Type, depth: int) -> Any:
    if draw.random() < 0.04:
        return _junk(draw, depth)
    if (draw_plain := PLAIN.get(type(wanted))) is not None:
        return draw_plain(draw)
    match wanted:
        case inspect.UnionType():
            return _value(draw, draw.choice(wanted.types), depth)
        case inspect.LiteralType():
            return draw.choice(wanted.values)
        case inspect.StructType():
            tag = {} if wanted.tag_field is None else {wanted.tag_field: wanted.tag}
            present = [field for field in wanted.fields if field.required or draw.random() < 0.3]
            return tag | {field.encode_name: _value(draw, field.type, depth + 1) for field in present}
        case inspect.DictType():
            return {draw.choice(TEXTS): _value(draw, wanted.value_type, depth + 1) for _ in range(draw.randrange(3))}
        case inspect.TupleType():
            return [_value(draw, item, depth + 1) for item in wanted.item_types]
        case inspect.VarTupleType() | inspect.ListType():
            return [_value(draw, wanted.item_type, depth + 1) for _ in range(draw.choice((0, 1, 1, 2, 3, 40)))]
    return _junk(draw, depth)


def _junk(draw: random.Random, depth: int) -> Any:
    many = draw.randrange(4) if depth < MAX_DEPTH else 0
    return draw.choice(
        (
            lambda: draw.choice(NUMBERS),
            lambda: draw.choice(TEXTS),
            lambda: draw.choice((None, True, False)),
            lambda: [_junk(draw, depth + 1) for _ in range(many)],
            lambda: {draw.choice(TEXTS): _junk(draw, depth + 1) for _ in range(many)},
        )
    )()


def _damaged(draw: random.Random, text: str) -> str:
    """The text with a piece cut out, doubled, or replaced."""
    start, end = sorted((draw.randrange(len(text) + 1), draw.randrange(len(text) + 1)))
    piece = draw.choice(("", text[start:end] * 2, "\0", '"', "}", "]", "-", "9" * 400, "\ud800", "\\u0000"))
    return text[:start] + piece + text[end:]


def is_call(text: str) -> bool:
    """Whether the text is JSON at all: for the tests of these messages."""
    try:
        msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
