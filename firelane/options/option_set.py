"""The options that one command, or one table of a TOML file, takes: in both by the same names, values and
bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firelane.options.declared import Declared, declared
from firelane.options.option import Group, OptionError


@dataclass(frozen=True)
class OptionSet:
    """Options that fields of these configs declare, each once. groups: those of these groups alone, in this
    order; (): all. only: those of these fields alone; (): all. without: keys that are none of the set."""

    configs: tuple[type, ...]
    groups: tuple[Group, ...] = ()
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @functools.cached_property
    def by_key(self) -> dict[str, Declared]:
        """The options by their keys."""
        found: dict[str, Declared] = {}
        for config in self.configs:
            for one in declared(config):
                if self._takes(one):
                    found.setdefault(one.key, one)
        return found

    def by_group(self) -> Iterator[tuple[Group, list[Declared]]]:
        """The options of each group."""
        options = list(self.by_key.values())
        for group in self.groups or dict.fromkeys(one.option.group for one in options):
            yield group, [one for one in options if one.option.group == group]

    def _takes(self, one: Declared) -> bool:
        return (
            (not self.groups or one.option.group in self.groups)
            and (not self.only or one.field in self.only)
            and one.key not in self.without
        )


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
