"""Options of a command as keys of a file: the same names, types and bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from firelane.errors import UsageError
from firelane.node.toml_file import TomlFile


class OptionTable(argparse.ArgumentParser):
    """Options by key: `max_queue` for --max-queue. Made as a parser is, by the functions that add options."""

    def __init__(self, *add: Callable[[argparse.ArgumentParser], None], without: Iterable[str] = ()) -> None:
        super().__init__(add_help=False)
        for one in add:
            one(self)
        self._by_key = {
            key_of(option): action
            for action in self._actions
            for option in action.option_strings[:1]
            if option not in without
        }

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._by_key)

    def read(self, file: TomlFile, at: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
        """The values of `given`, a table of the file at `at`, by the option's name in a namespace. Raises
        UsageError."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            action = self._by_key[key]
            try:
                found[action.dest] = _converted(action, value, file.path.parent)
            except (ValueError, argparse.ArgumentTypeError, UsageError) as error:
                raise file.error((*at, key), str(error)) from error
        return found

    def defaults(self) -> dict[str, Any]:
        return {
            action.dest: action.default
            for action in self._by_key.values()
            if action.default is not argparse.SUPPRESS
        }


def key_of(option: str) -> str:
    """The key of an option."""
    return option.removeprefix("--").replace("-", "_")


def _converted(action: argparse.Action, value: Any, directory: Path) -> Any:
    """Raises ValueError."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is not true or false")
        return value == action.const if action.default is argparse.SUPPRESS else value
    if isinstance(action.default, list) or action.nargs == "+":
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not a list")
        return [_one(action, item, directory) for item in value]
    return _one(action, value, directory)


def _one(action: argparse.Action, value: Any, directory: Path) -> Any:
    if isinstance(value, bool | list | dict):
        raise ValueError(f"{value!r} is not a {'text' if action.type is None else 'plain value'}")
    text = f"{value}"
    if action.choices is not None and text not in action.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(map(str, action.choices))}")
    if action.type is Path:
        return directory / Path(text).expanduser()
    try:
        return action.type(text) if callable(action.type) else text
    except ValueError as error:
        raise ValueError(f"{value!r} is not what the option takes") from error
