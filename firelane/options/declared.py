"""Options of a config's fields, read from their annotations."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firelane.errors import UsageError
from firelane.options.option import UNITS, Option, OptionError

Values = Mapping[str, Any]
"""Values of options, by their keys: those of the options that are given alone."""
METAVARS: dict[type, str] = {int: "N", float: "X", Path: "FILE"}


@dataclass(frozen=True)
class Declared:
    """An option with the field that declares it. kind: the type of one value. many: the field is a tuple of
    such values. default: the field's; None where it has to be given."""

    field: str
    option: Option
    kind: type
    many: bool
    optional: bool
    default: Any

    @functools.cached_property
    def flag(self) -> str:
        """The option as the command line has it."""
        name = self.option.flag or self.field.replace("_", "-")
        return f"--no-{name}" if self.is_switch and self.default and not self.option.flag else f"--{name}"

    @functools.cached_property
    def key(self) -> str:
        """The option as files have it, and its name in a namespace."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def name(self) -> str:
        """The option as it is given: the key, where files alone have it, else the flag."""
        return self.key if self.option.file else self.flag

    @property
    def is_switch(self) -> bool:
        """The option has no value: it changes the default."""
        return self.kind is bool and not self.optional and not self.option.both

    @property
    def metavar(self) -> str:
        """The name of the option's value in the help."""
        if self.option.choices and not self.option.metavar:
            return f"{{{','.join((*self.option.choices, *self.option.named))}}}"
        return self.option.metavar or ("X" if self.option.unit else METAVARS.get(self.kind, "TEXT"))

    @property
    def default_text(self) -> str:
        """The default in words; "" where there is none to tell."""
        if self.option.default:
            return self.option.default
        if self.default is None or self.default == () or self.default == "" or self.kind is bool:
            return ""
        if self.option.unit:
            return f"{self.default / UNITS[self.option.unit]:g}"
        return f"{self.default:g}" if isinstance(self.default, int | float) else f"{self.default}"

    def read(self, text: str) -> Any:
        """One value. Raises OptionError."""
        return self.option.value(self.kind, text)


@functools.cache
def declared(config: type) -> tuple[Declared, ...]:
    """The options of a config and of the configs below it, each once."""
    found: dict[str, Declared] = {}
    for _, own, below in _fields(config):
        for one in (own,) if own is not None else declared(below) if below is not None else ():
            found.setdefault(one.key, one)
    return tuple(found.values())


def fields(config: type, values: Values) -> dict[str, Any]:
    """Arguments of the config's constructor that values of options give, which are found by the options'
    keys. A config below it is made where one of its options is given."""
    found: dict[str, Any] = {}
    for name, own, below in _fields(config):
        if own is not None and own.key in values:
            found[name] = tuple(values[own.key]) if own.many else values[own.key]
        elif below is not None and (inner := fields(below, values)):
            found[name] = below(**inner)
    return found


def check(config: object) -> None:
    """Raises UsageError for a value of a field that its option does not take."""
    for name, own, _ in _fields(type(config)):
        if own is None or own.many or (value := getattr(config, name)) == own.default or value is None:
            continue
        try:
            own.option.check(value)
        except OptionError as error:
            raise UsageError(f"{name}: {error}") from None


@functools.cache
def _fields(config: type) -> tuple[tuple[str, Declared | None, type | None], ...]:
    """Each field that has an option, with it, or the config below it that has some."""
    hints = typing.get_type_hints(config, include_extras=True)
    return tuple(
        (name, own, below)
        for name, default, _ in _defaults(config)
        for own, below in [_field(name, hints[name], default)]
        if own is not None or below is not None
    )


def _field(name: str, hint: Any, default: Any) -> tuple[Declared | None, type | None]:
    options = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Option)]
    kind, optional = _without_none(hint.__origin__ if options else hint)
    if not options:
        return None, kind if isinstance(kind, type) and _is_made_of_options(kind) else None
    many = typing.get_origin(kind) is tuple
    one = typing.get_args(kind)[0] if many else kind
    return Declared(name, options[0], one, many, optional, default), None


def _is_made_of_options(kind: type) -> bool:
    """Whether it is a config that can be made of options alone."""
    is_config = dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")
    return is_config and bool(_fields(kind)) and all(has for _, _, has in _defaults(kind))


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type, and whether None is allowed beside it."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else hint, True


def _defaults(config: type) -> Iterator[tuple[str, Any, bool]]:
    """Each field's default, None where there is none to tell, and whether the field need not be given."""
    if dataclasses.is_dataclass(config):
        missing: Any = dataclasses.MISSING
        found: Any = dataclasses.fields(config)
    else:
        from msgspec import NODEFAULT, structs

        missing, found = NODEFAULT, structs.fields(config)
    for one in found:
        has = one.default is not missing or one.default_factory is not missing
        yield one.name, None if one.default is missing else one.default, has
