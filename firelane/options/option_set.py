"""The options that one command, or one table of a file, takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from firelane.options.declared import Declared, declared
from firelane.options.option import Group


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
