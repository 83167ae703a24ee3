"""Options that fields declare: read from the command line and tables, checked, and given to the config."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from firelane.errors import UsageError
from firelane.options import (
    Group,
    Option,
    OptionError,
    OptionSet,
    add_options,
    check,
    declared,
    fields,
    read_table,
)

OVEN, DOOR = Group("oven", "the oven"), Group("door", "the door", "what opens")


class Door(msgspec.Struct, frozen=True, kw_only=True):
    lock: Annotated[Path | None, Option("key of the lock", DOOR)] = None
    guests: Annotated[tuple[str, ...], Option("who may come", DOOR)] = ()


@dataclass(frozen=True, kw_only=True)
class Oven:
    name: str
    degrees: Annotated[int, Option("heat, 5% more at the back", OVEN, least=20, most=250)] = 180
    minutes: Annotated[float | None, Option("time", OVEN, default="until brown")] = None
    room_bytes: Annotated[int | None, Option("room", OVEN, flag="room-gib", unit="GiB")] = None
    fan: Annotated[bool, Option("without air", OVEN)] = True
    light: Annotated[bool, Option("with light", OVEN)] = False
    bell: Annotated[bool | None, Option("ring", OVEN)] = None
    mode: Annotated[str, Option("kind of heat", OVEN, choices=("top", "bottom"))] = "top"
    rack: Annotated[int, Option("height", OVEN, least=0, file=True)] = 2
    door: Door = field(default_factory=Door)

    def __post_init__(self) -> None:
        check(self)


def parsed(*words: str, **chosen: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_options(parser, OptionSet((Oven,), **chosen))
    return vars(parser.parse_args(words))


def test_what_is_given_comes_to_the_config_and_the_rest_keeps_its_default() -> None:
    words = ["--degrees", "200", "--no-fan", "--light", "--room-gib", "0.5", "--no-bell"]
    given = fields(Oven, parsed(*words, "--guests", "ann", "--guests", "bo"))
    door = Door(guests=("ann", "bo"))
    assert given == {
        "degrees": 200,
        "room_bytes": 1 << 29,
        "fan": False,
        "light": True,
        "bell": False,
        "door": door,
    }
    assert Oven(name="x", **given).mode == "top"
    assert fields(Oven, parsed()) == {}


def test_a_command_takes_some_of_the_groups_or_fields() -> None:
    assert parsed("--lock", "a", groups=(DOOR,)) == {"lock": Path("a")}
    with pytest.raises(SystemExit):
        parsed("--degrees", "200", groups=(DOOR,))
    assert parsed("--mode", "bottom", only=("mode",)) == {"mode": "bottom"}
    with pytest.raises(SystemExit):
        parsed("--degrees", "200", only=("mode",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--degrees 19", "--degrees: 19 is not 20 or more"),
        ("--degrees 251", "--degrees: 251 is more than 250, the most that is taken"),
        ("--degrees warm", "--degrees: 'warm' is not a whole number"),
        ("--minutes 0", "--minutes: 0 is not a number above 0"),
        ("--room-gib nan", "--room-gib: nan is not a number above 0"),
        ("--mode side", "--mode: 'side' is not one of top, bottom"),
        ("--rack 1", "unrecognized arguments: --rack 1"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(words: str, message: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parsed(*words.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"degrees": 19}, "degrees: 19 is not 20 or more"),
        ({"degrees": 251}, "degrees: 251 is more than 250"),
        ({"room_bytes": -(1 << 30)}, "room_bytes: -1 is not a number above 0"),
        ({"mode": "side"}, "mode: 'side' is not one of top, bottom"),
        ({"rack": -1}, "rack: -1 is not 0 or more"),
    ],
)
def test_a_config_made_in_python_is_checked_by_the_same_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Oven(name="x", **values)
    assert Oven(name="x", degrees=20, rack=0).degrees == 20
    assert Oven(name="x", degrees=250, room_bytes=1).room_bytes == 1


def table(values: dict[str, Any]) -> dict[str, Any]:
    def where(key: str, message: str) -> Exception:
        return UsageError(f"at {key}: {message}")

    return fields(Oven, read_table(OptionSet((Oven,)), values, Path("/etc/oven"), where))


def test_a_table_of_a_file_has_the_same_options_and_those_for_files_alone() -> None:
    given = table({"no_fan": True, "light": False, "bell": True, "rack": 1, "room_gib": 2, "lock": "key"})
    assert given == {
        "fan": False,
        "light": False,
        "bell": True,
        "rack": 1,
        "room_bytes": 2 << 30,
        "door": Door(lock=Path("/etc/oven/key")),
    }
    assert table({"no_fan": False}) == {"fan": True}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"degrees": 19}, "at degrees: 19 is not 20 or more"),
        ({"no_fan": 1}, "at no_fan: 1 is not true or false"),
        ({"degrees": True}, "at degrees: True is not a plain value"),
        ({"guests": "ann"}, "at guests: 'ann' is not a list"),
        ({"mode": "side"}, "at mode: 'side' is not one of top"),
    ],
)
def test_a_wrong_value_in_a_table_is_told_with_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        table(values)


def test_the_help_tells_defaults(capsys) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "heat, 5% more at the back (default: 180)",
        "time (default: until brown)",
        "--no-fan without air",
        "the door: what opens",
        "--lock FILE key of the lock",
        "--mode {top,bottom} kind of heat (default: top)",
    ):
        assert part in text, part
    assert "--rack" not in text


def test_a_number_above_all_measure_is_refused() -> None:
    (degrees,) = [one for one in declared(Oven) if one.field == "minutes"]
    for text in ("1e300", "inf", "nan", "-1", "x", ""):
        with pytest.raises(OptionError):
            degrees.read(text)
