"""Plain data as JSON and back: what passes between a program and its tests.

None, booleans, numbers, text and lists are themselves; everything else is an object with one key, its type.
Instances of subclasses become what they are instances of. What is not plain data is `opaque`, equal to nothing.
"""

import json

LARGE = 1000  # bits; JSON's decimal integers are slow and limited in length
LONGEST_ITERATOR = 10_000


class NotPlain(Exception):
    """A value that cannot be passed on."""


class Opaque:
    """In place of a value that is not plain data."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


def dumps(value):
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def encode(value):
    """Raises NotPlain, or RecursionError for what is too deep or holds itself."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        value = int(value)
        return value if value.bit_length() < LARGE else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [encode(item) for item in value]
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [encode(value.start), encode(value.stop), encode(value.step)]}
    if hasattr(value, "__next__"):
        items: list = []
        for item in value:
            if len(items) == LONGEST_ITERATOR:
                raise NotPlain(f"an iterator of more than {LONGEST_ITERATOR} items")
            items.append(encode(item))
        return {"iterator": items}
    raise NotPlain(f"a value of type {type(value).__name__}")


def decode(value):
    """Raises an exception of any kind for what `encode` does not give."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return DECODERS[kind](content)


def _items(content):
    return [decode(item) for item in content]


DECODERS = {
    "int": lambda text: int(text, 16),
    "tuple": lambda content: tuple(_items(content)),
    "set": lambda content: set(_items(content)),
    "frozenset": lambda content: frozenset(_items(content)),
    "dict": lambda content: {decode(key): decode(item) for key, item in content},
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda content: complex(*content),
    "range": lambda content: range(*_items(content)),
    "iterator": lambda content: iter(_items(content)),
    "opaque": Opaque,
}
