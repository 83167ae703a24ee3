"""Options of configs as keys of a TOML table: the same names, values and bounds as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firelane.options.declared import Declared
from firelane.options.option import OptionError


def read_table(
    known: Mapping[str, Declared], table: Mapping[str, Any], directory: Path, where: Any
) -> dict[str, Any]:
    """Values of a table's keys. known: the options by their keys, of which the table has no others.
    directory: where paths begin. where: gives the error of a key for its message, which is raised."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        try:
            found[key] = _value(known[key], value, directory)
        except OptionError as error:
            raise where(key, str(error)) from error
    return found


def _value(one: Declared, value: Any, directory: Path) -> Any:
    if one.kind is bool:
        if not isinstance(value, bool):
            raise OptionError(f"{value!r} is not true or false")
        return value != one.default if one.is_switch else value
    if not one.many:
        return _plain(one, value, directory)
    if not isinstance(value, list):
        raise OptionError(f"{value!r} is not a list")
    return [_plain(one, item, directory) for item in value]


def _plain(one: Declared, value: Any, directory: Path) -> Any:
    if isinstance(value, bool | list | dict):
        raise OptionError(f"{value!r} is not a plain value")
    found = one.read(f"{value}")
    return directory / found.expanduser() if isinstance(found, Path) else found
