"""Options of configs as keys of a TOML table: the same names, values and bounds as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from firelane.options.declared import Declared
from firelane.options.option import OptionError
from firelane.options.option_set import OptionSet


def read_table(
    options: OptionSet, table: Mapping[str, Any], directory: Path, where: Callable[[str, str], Exception]
) -> dict[str, Any]:
    """Values of a table, which has keys of these options alone. directory: where paths begin. where: makes
    the error that is raised, of a key and a message."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        try:
            found[key] = _value(options.by_key[key], value, directory)
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
    return directory / found if isinstance(found, Path) else found
