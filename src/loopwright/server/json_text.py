"""Writes JSON for clients. Never fails for what a program returned. Used by every answer of the server."""

import json

import msgspec


def encode_json(value: object) -> bytes:
    """The value as JSON. Half a surrogate pair, which is no Unicode text but can stand in a JSON string, is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, builtin_types=())).encode("ascii")
