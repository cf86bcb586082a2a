"""Python values as bytes and JSON, and back, without pickle: reading executes nothing.

Strings (any, also lone surrogates), None, bools, integers of any size, floats (bit for bit), bytes, and lists, tuples
and dicts of these come back as what they were. Anything else is a TypeError that names it.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_DEEPEST = 200  # levels of nesting
_FLOAT, _BYTES, _TUPLE, _DICT, _INTEGER, _TEXT = "float", "bytes", "tuple", "dict", "int", "text"


def to_bytes(value: Any, what: str) -> bytes:
    """A value as bytes; empty for None. ``what`` is named when it cannot be."""
    if value is None:
        return b""
    if isinstance(value, str):
        return b"s" + str.encode(value, "utf-8", "surrogatepass")
    if type(value) is bytes:
        return b"b" + value
    return b"j" + json.dumps(to_json(value, what), separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Any:
    """The value that `to_bytes` was given. ValueError for bytes that it cannot have made."""
    if not data:
        return None
    kind, rest = data[:1], data[1:]
    if kind == b"s":
        return rest.decode("utf-8", "surrogatepass")
    if kind == b"b":
        return rest
    if kind == b"j":
        try:
            return from_json(json.loads(rest))
        except (RecursionError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise ValueError(f"no value can be read from {data[:40]!r}") from error
    raise ValueError(f"no value can be read from {data[:40]!r}")


def to_json(value: Any, what: str, depth: int = 0) -> Any:
    """A value as JSON: what JSON has not is a dict of one entry that says what it is."""
    if depth > _DEEPEST:
        raise TypeError(f"{what} is nested deeper than {_DEEPEST} levels.")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        return text if text.isascii() else {_TEXT: text.encode("utf-8", "surrogatepass").hex()}
    if kind is int:
        return value if value.bit_length() < 1024 else {_INTEGER: hex(value)}
    if kind is float:
        return {_FLOAT: struct.pack("<d", value).hex()}
    if kind is bytes:
        return {_BYTES: value.hex()}
    if kind is list:
        return [to_json(item, what, depth + 1) for item in value]
    if kind is tuple:
        return {_TUPLE: [to_json(item, what, depth + 1) for item in value]}
    if kind is dict:
        return {_DICT: [[to_json(k, what, depth + 1), to_json(v, what, depth + 1)] for k, v in value.items()]}
    raise TypeError(
        f"{what} must be strings, None, numbers, bytes, or lists, tuples and dicts of these to be kept on disk, "
        f"got a {kind.__module__}.{kind.__qualname__}."
    )


def from_json(told: Any) -> Any:
    """The value that `to_json` was given."""
    if isinstance(told, list):
        return [from_json(item) for item in told]
    if not isinstance(told, dict):
        return told
    ((kind, content),) = told.items()
    if kind == _TEXT:
        return bytes.fromhex(content).decode("utf-8", "surrogatepass")
    if kind == _FLOAT:
        return struct.unpack("<d", bytes.fromhex(content))[0]
    if kind == _BYTES:
        return bytes.fromhex(content)
    if kind == _INTEGER:
        return int(content, 16)
    if kind == _TUPLE:
        return tuple(from_json(item) for item in content)
    if kind == _DICT:
        return {from_json(key): from_json(value) for key, value in content}
    raise ValueError(f"{kind!r} is no kind of value")
