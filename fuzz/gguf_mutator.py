"""Changes of GGUF headers that leave them headers: one entry of the metadata, or one tensor, is another."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import NamedTuple

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
NUMBERS = (0, 1, 2, 3, 7, 64, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
TEXTS = (b"", b"a", b"llama", b"gpt2", b"\xc3\xa9", b"x" * 200, b"blk.0.attn_q.weight", b"token_embd.weight")


class Parts(NamedTuple):
    """Bytes of each entry and of each tensor's description, both behind their names."""

    entries: list[tuple[bytes, bytes]]
    tensors: list[tuple[bytes, bytes]]

    def joined(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.entries))
        found = head + b"".join(_string(name) + body for name, body in (*self.entries, *self.tensors))
        return found + bytes(-len(found) % 32)


def mutate_gguf(data: bytes, draw: random.Random) -> bytes | None:
    """None where it is no header."""
    try:
        parts = _Reader(data).parts()
    except (struct.error, IndexError, KeyError, ValueError):
        return None
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        listed = draw.choice((parts.entries, parts.entries, parts.tensors))
        if not listed:
            continue
        at = draw.randrange(len(listed))
        listed[at : at + 1] = _changed(
            listed[at], draw.choice(listed), draw, is_tensor=listed is parts.tensors
        )
    return parts.joined()


def _changed(
    one: tuple[bytes, bytes], other: tuple[bytes, bytes], draw: random.Random, *, is_tensor: bool
) -> list[tuple[bytes, bytes]]:
    name, body = one
    kind = draw.randrange(5)
    if kind == 0:
        return []
    if kind == 1:
        return [(name, other[1])]
    if kind == 2:
        return [one, (draw.choice((*TEXTS, name + b"x")), body)]
    if kind == 3 and not is_tensor:
        return [(name, _value(draw))]
    at = draw.randrange(len(body)) // 4 * 4
    return [(name, (body[:at] + struct.pack("<Q", draw.choice(NUMBERS)) + body[at + 8 :])[: len(body)])]


def _value(draw: random.Random) -> bytes:
    kind = draw.choice((*SIZES, STRING, STRING, ARRAY))
    if kind == STRING:
        return struct.pack("<I", kind) + _string(draw.choice(TEXTS))
    if kind == ARRAY:
        values = [_string(draw.choice(TEXTS)) for _ in range(draw.choice((0, 1, 2, 9)))]
        return struct.pack("<IIQ", kind, STRING, len(values)) + b"".join(values)
    return struct.pack("<IQ", kind, draw.choice(NUMBERS))[: 4 + SIZES[kind]]


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


class _Reader:
    """A place in a header, which moves on. Raises ValueError, KeyError and struct.error for what is none."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 8

    def parts(self) -> Parts:
        num_tensors, num_entries = self._number("<Q"), self._number("<Q")
        entries = [(self._name(), self._since(self._pass_value)) for _ in range(num_entries)]
        return Parts(entries, [(self._name(), self._since(self._pass_tensor)) for _ in range(num_tensors)])

    def _number(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._pass(struct.calcsize(form))
        return found

    def _pass(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("it ends before")

    def _name(self) -> bytes:
        size = self._number("<Q")
        self._pass(size)
        return self._data[self._at - size : self._at]

    def _since(self, skip: Callable[[], None]) -> bytes:
        begin = self._at
        skip()
        return self._data[begin : self._at]

    def _pass_value(self) -> None:
        kind = self._number("<I")
        if kind == ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
        else:
            count = 1
        if kind in SIZES:
            self._pass(SIZES[kind] * count)
            return
        for _ in range(min(count, len(self._data))):
            self._name()

    def _pass_tensor(self) -> None:
        self._pass(8 * self._number("<I") + 12)
