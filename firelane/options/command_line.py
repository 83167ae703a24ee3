"""Options of configs on the command line of a command."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any

from firelane.options.declared import Declared, declared
from firelane.options.option import Group, OptionError

if TYPE_CHECKING:
    import argparse


def add_options(
    parser: argparse.ArgumentParser,
    *configs: type,
    groups: Iterable[Group] = (),
    only: Container[str] = (),
) -> dict[Group, Any]:
    """Have the command take the options of configs; returns its groups. An option that is not given leaves no
    value, so that the config's own default counts. groups: those of these groups alone, in this order; only:
    those of these fields alone."""
    known = {one.key: one for config in reversed(configs) for one in reversed(declared(config))}
    chosen = [one for one in reversed(known.values()) if not only or one.field in only]
    made: dict[Group, Any] = {}
    for group in groups or dict.fromkeys(one.option.group for one in chosen):
        made[group] = parser.add_argument_group(group.title, group.about or None)
        for one in chosen:
            if one.option.group == group and not one.option.file:
                _add(made[group], one)
    return made


def _add(group: Any, one: Declared) -> None:
    import argparse

    common: dict[str, Any] = {"dest": one.key, "default": argparse.SUPPRESS, "help": help_text(one)}
    if one.is_switch:
        group.add_argument(one.flag, action="store_const", const=not one.default, **common)
    elif one.kind is bool:
        group.add_argument(one.flag, action=argparse.BooleanOptionalAction, **common)
    else:
        action = "append" if one.many else "store"
        group.add_argument(one.flag, action=action, type=reader(one.read), metavar=one.metavar, **common)


def help_text(one: Declared) -> str:
    """The help of an option, with its default."""
    default = f" (default: {one.default_text})" if one.default_text else ""
    return f"{one.option.help}{default}".replace("%", "%%")


def reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The reader of a value as argparse wants it."""
    import argparse

    def read_text(text: str) -> Any:
        try:
            return read(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_text
