"""Long lists in request bodies, decoded some entries at a time: a call of the decoder holds all threads
until it returns, and the numbers that it makes take eight times the memory of token ids. Fields that a
type has no place for are taken out.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec
import msgspec.inspect
import msgspec.structs
from msgspec import inspect

PART_BYTES = 16 << 10
"""Decoded at a time: some 0.1 ms."""
NO_NUMBER = re.compile(rb'["\[{]')
_STRUCT = inspect.StructType
_UNION = inspect.UnionType


@dataclass(frozen=True, kw_only=True, slots=True)
class ListField:
    """A field of a struct that may be a list. kind: of such a list. is_of_ids: its entries may be lists of
    token ids, which are kept as arrays.
    """

    name: str
    max_length: int
    decoder: msgspec.json.Decoder[list[Any]]
    kind: msgspec.inspect.Type
    is_of_ids: bool

    def decode(self, part: bytes, *, strict: bool) -> tuple[list[Any], list[str]]:
        """Entries, and the names of fields that were left out of them. Raises msgspec.ValidationError."""
        try:
            items, names = self.decoder.decode(part), list[str]()
        except msgspec.ValidationError as error:
            if strict or "unknown field" not in str(error):
                raise
            value = msgspec.json.decode(part)
            names = list(drop_unknown(self.kind, value, self.name))
            items = self.decoder.decode(msgspec.json.encode(value))
        if self.is_of_ids:
            items = [array("i", item) if isinstance(item, list) else item for item in items]
        return items, names


@dataclass(frozen=True, slots=True)
class Sliced:
    """A body in parts: lists of the entries of its longest field, and the body with but one of them."""

    rest: bytes
    field: ListField
    parts: Iterator[bytes]

    def decode(self, *, strict: bool) -> tuple[list[Any], list[str]]:
        """The entries, and the names of fields that were left out of them. Raises msgspec.ValidationError."""
        items, names = list[Any](), dict[str, None]()
        for part in self.parts:
            more, unknown = self.field.decode(part, strict=strict)
            items += more
            names |= dict.fromkeys(unknown)
        return items, list(names)


@functools.cache
def list_fields(request_type: Any) -> Mapping[str, ListField]:
    """Fields of a struct, by their names in JSON."""
    found: dict[str, ListField] = {}
    for field in msgspec.structs.fields(request_type):
        entry = _entry_of(field.type)
        if entry is not None:
            item, max_length = entry
            nested = _entry_of(item)
            found[field.encode_name] = ListField(
                name=field.name,
                max_length=max_length,
                decoder=msgspec.json.Decoder(list[item]),
                kind=msgspec.inspect.type_info(list[item]),
                is_of_ids=nested is not None and _plain(nested[0]) is int,
            )
    return found


def _entry_of(kind: Any) -> tuple[Any, int] | None:
    """Type of the entries, and how many there may be, of a type that may be a list."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        return arguments[0], 1 << 62
    if origin is Annotated:
        found = _entry_of(arguments[0])
        limits = [note.max_length for note in arguments[1:] if isinstance(note, msgspec.Meta)]
        return found and (found[0], min([found[1], *(most for most in limits if most is not None)]))
    if origin in (Union, UnionType):
        return next((found for one in arguments for found in [_entry_of(one)] if found), None)
    return None


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def sliced(body: bytes | bytearray, fields: Mapping[str, ListField]) -> Sliced | None:
    """None where the whole body in one call is as good, or has to say what is wrong."""
    try:
        values = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        name = max(values, key=lambda one: len(values[one]), default="")
        if name not in fields or len(values[name]) <= PART_BYTES:
            return None
        found = _parts(values[name], fields[name].max_length)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if found is None:
        return None
    one, parts = found
    return Sliced(msgspec.json.encode({**values, name: msgspec.Raw(b"[%b]" % one)}), fields[name], parts)


def _parts(value: msgspec.Raw, max_length: int) -> tuple[bytes, Iterator[bytes]] | None:
    """A short entry of a list, and all of them in parts; None where it has too many, or none that is short.
    Raises msgspec.ValidationError where it is no list.
    """
    if NO_NUMBER.search(value, 1) is None:
        text = bytes(value)
        one = text[1 : text.find(b",")]
        return (one, _of_numbers(text)) if text.count(b",") < max_length else None
    entries = msgspec.json.decode(value, type=list[msgspec.Raw])
    shortest = min(entries, key=len)
    if len(entries) > max_length or len(shortest) > PART_BYTES:
        return None
    return bytes(shortest), _of_entries(entries)


def _of_numbers(text: bytes) -> Iterator[bytes]:
    begin = 1
    while (end := text.find(b",", begin + PART_BYTES)) >= 0:
        yield b"[%b]" % text[begin:end]
        begin = end + 1
    yield b"[" + text[begin:]


def _of_entries(entries: Sequence[msgspec.Raw]) -> Iterator[bytes]:
    begin = size = 0
    for index, entry in enumerate(entries):
        size += len(entry)
        if size >= PART_BYTES:
            yield b"[%b]" % b",".join(entries[begin : index + 1])
            begin, size = index + 1, 0
    if begin < len(entries):
        yield b"[%b]" % b",".join(entries[begin:])


def drop_unknown(kind: inspect.Type, value: Any, where: str = "") -> Iterator[str]:
    """Take fields out of `value` that a type which forbids unknown ones does not know, and yield their names
    (entries of a list are not told apart). They stay where the type is ALWAYS_STRICT: there a misspelt name
    would lose what the answer must be.
    """
    if isinstance(kind, inspect.Metadata):
        yield from drop_unknown(kind.type, value, where)
    elif isinstance(kind, _UNION):
        for one in kind.types:
            if not _has_other_tag(one, value):
                yield from drop_unknown(one, value, where)
    elif isinstance(kind, inspect.ListType) and isinstance(value, list):
        for item in value:
            yield from drop_unknown(kind.item_type, item, f"{where}[]")
    elif isinstance(kind, _STRUCT) and isinstance(value, dict):
        yield from _of_struct(kind, value, f"{where}." if where else "")


def _has_other_tag(kind: inspect.Type, value: Any) -> bool:
    """Whether the value says that it is of another type of the union. Each of them would be looked through,
    at each level of what is nested."""
    if not isinstance(kind, _STRUCT) or kind.tag_field is None or not isinstance(value, dict):
        return False
    return cast(dict[str, Any], value).get(kind.tag_field) != kind.tag


def _of_struct(kind: inspect.StructType, value: dict[str, Any], prefix: str) -> Iterator[str]:
    fields = {field.encode_name: field.type for field in kind.fields}
    for name in list(value):
        if name in fields:
            yield from drop_unknown(fields[name], value[name], prefix + name)
        elif kind.forbid_unknown_fields and not getattr(kind.cls, "ALWAYS_STRICT", False):
            del value[name]
            yield prefix + name
