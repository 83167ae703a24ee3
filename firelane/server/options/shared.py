"""Option types, and the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from firelane.server.options.config_file import add_config, given_values

if TYPE_CHECKING:
    from firelane.options import OptionSet

N = TypeVar("N", int, float)
GIB = 1 << 30

MODEL_HELP = "directory, GGUF file, hub id, s3://..., or name of `firelane list`"


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers of this range."""
    return _reader(int, least, most)


def real(least: float | None, most: float | None = None) -> Callable[[str], float]:
    """A reader of numbers of this range; without `least`, of those above 0."""
    return _reader(float, least, most)


def _reader(kind: Callable[[str], N], least: float | None, most: float | None) -> Callable[[str], N]:
    def read(text: str) -> N:
        from firelane.options import OptionError, number, within

        try:
            return within(text, number(text, kind), least, most)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


positive_int, count = whole(1), whole(0)
positive_float = real(None)
processes = whole(1, 256)
port = whole(0, 65535)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)


def threads(arguments: argparse.Namespace) -> int:
    """The number that the option --threads gives, or the number of usable cores."""
    from firelane.native.machine import cpu_identity

    return engine_settings(arguments).get("threads") or cpu_identity().usable_cores


def add_engine(parser: argparse.ArgumentParser, *only: str) -> None:
    """Settings of a command that runs a model itself. only: those of these fields alone."""
    from firelane.options import add_options

    if not only:
        add_config(parser)
    add_options(parser, _of_engine(only))


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of EngineConfig that the options of `add_engine` give. Raises UsageError for a wrong file."""
    from firelane.engine_config import EngineConfig
    from firelane.options import fields

    has_file = getattr(arguments, "config", None) is not None
    return fields(EngineConfig, given_values(arguments, _of_engine()) if has_file else vars(arguments))


def first_adapter(settings: dict[str, Any]) -> str:
    """The name of the adapter that one conversation uses, of those that such settings name; "" for none."""
    loras = settings.get("loras", ())
    return loras[0][0] if loras else ""


def _of_engine(only: tuple[str, ...] = ()) -> OptionSet:
    from firelane.engine_config import ADAPTERS, CARE, ENGINE, EngineConfig
    from firelane.options import OptionSet

    return OptionSet((EngineConfig,), (ENGINE, ADAPTERS, CARE), only=only, without=("step_deadline",))


def log_resolved(section: str, config: Any, *, as_json: bool) -> None:
    """The settings of a config (a dataclass or a struct): an event of a JSON log, else lines of level
    debug."""
    import logging

    from firelane.telemetry.logs import event

    log = logging.getLogger(__name__)
    if as_json:
        event(log, "config", {"section": section, **_settings(config)})
        return
    for name, value in _settings(config).items():
        log.debug("%s.%s = %s", section, name, value)


def _settings(config: Any) -> dict[str, Any]:
    names = getattr(config, "__struct_fields__", None) or vars(config)
    return {name: getattr(config, name) for name in names}
