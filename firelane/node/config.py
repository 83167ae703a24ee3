"""The file of `firelane node`: which models there are, under which names, and what each may take.

Options of engines and of the gateway are not known here: they are handed on as they are (`options`), with the
file, so that whoever knows them can say where a wrong one stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firelane.errors import UsageError
from firelane.node.policy import ModelPolicy, NodePolicy
from firelane.node.toml_file import TomlFile, meant

GIB = 1 << 30
SECTIONS = ("node", "server", "engine", "aliases", "models")
NODE_KEYS = (
    *("budget_gib", "min_residence_s", "patience_s"),
    *("retry_s", "max_retry_s", "wake_deadline_s"),
)
MODEL_KEYS = ("source", "aliases", "priority", "pinned", "load", "idle_s", "tenants")
LOADS = ("start", "request")


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model of the file. source: None for the model that Firelane carries. aliases: all further names.
    tenants: those that may use it, None: all. options: further keys, of engines and gateway."""

    name: str
    source: str | None
    policy: ModelPolicy
    aliases: tuple[str, ...] = ()
    tenants: tuple[str, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """budget_bytes of `policy` is None where the file names none. server, engine: options of the gateway, and
    of all engines."""

    file: TomlFile
    policy: NodePolicy
    models: tuple[ModelEntry, ...]
    server: dict[str, Any]
    engine: dict[str, Any]


def read_config(path: Path, known: Iterable[str] = ()) -> NodeConfig:
    """known: options that a model may have beside MODEL_KEYS. Raises UsageError, with line and key."""
    file = TomlFile(path)
    file.check_keys((), SECTIONS)
    file.check_keys(("node",), NODE_KEYS)
    names = list(file.table("models"))
    if not names:
        raise UsageError(f'{path}: no model: write [models.NAME] with source = "DIRECTORY or hub id"')
    aliases = _aliases(file, names)
    keys = (*MODEL_KEYS, *known)
    models = tuple(_model(file, name, aliases, keys) for name in names)
    return NodeConfig(
        file=file,
        policy=_policy(file),
        models=models,
        server=file.table("server"),
        engine=file.table("engine"),
    )


def _policy(file: TomlFile) -> NodePolicy:
    budget_gib = file.number(("node", "budget_gib"))
    if budget_gib == 0:
        raise file.error(
            ("node", "budget_gib"), "no model fits into 0 GiB: leave it out for 80% of the free memory"
        )
    given = {name: file.number(("node", name)) for name in NODE_KEYS if name != "budget_gib"}
    return NodePolicy(
        budget_bytes=None if budget_gib is None else int(budget_gib * GIB),
        **{name: float(value) for name, value in given.items() if value is not None},
    )


def _model(file: TomlFile, name: str, aliases: dict[str, str], known: Iterable[str]) -> ModelEntry:
    at = ("models", name)
    if not name or not name.isprintable():
        raise file.error(at, "a model needs a name that can be printed")
    file.check_keys(at, known)
    table = file.table(*at)
    load = file.value((*at, "load"), str, f"one of {', '.join(LOADS)}", "request")
    if load not in LOADS:
        raise file.error((*at, "load"), f"{load!r} is not one of {', '.join(LOADS)}{meant(load, LOADS)}")
    policy = ModelPolicy(
        pinned=file.value((*at, "pinned"), bool, "true or false", default=False),
        at_start=load == "start",
        priority=file.value((*at, "priority"), int, "a whole number", 0),
        idle_s=file.number((*at, "idle_s")),
    )
    return ModelEntry(
        name=name,
        source=file.value((*at, "source"), str, "a directory or a hub id"),
        policy=policy,
        aliases=tuple(alias for alias, target in aliases.items() if target == name),
        tenants=file.texts((*at, "tenants")),
        options={key: value for key, value in table.items() if key not in MODEL_KEYS},
    )


def _aliases(file: TomlFile, names: list[str]) -> dict[str, str]:
    """Each alias with the model that it means in the end. Raises UsageError for clashes and cycles."""
    means: dict[str, str] = {}
    for name in names:
        for alias in file.texts(("models", name, "aliases")) or ():
            _take(file, ("models", name, "aliases"), alias, (*names, *means))
            means[alias] = name
    for alias in file.table("aliases"):
        _take(file, ("aliases", alias), alias, (*names, *means))
        means[alias] = file.value(("aliases", alias), str, "the name of a model")
    return {alias: _followed(file, alias, means, names) for alias in means}


def _take(file: TomlFile, at: tuple[str, ...], alias: str, taken: tuple[str, ...]) -> None:
    if alias in taken:
        raise file.error(at, f"the name {alias!r} is given twice: give each model names of its own")


def _followed(file: TomlFile, alias: str, means: dict[str, str], names: list[str]) -> str:
    seen, name = [alias], means[alias]
    while name not in names:
        at = ("aliases", seen[-1])
        if name in seen:
            raise file.error(at, f"aliases go in a circle: {' -> '.join([*seen, name])}")
        if name not in means:
            raise file.error(at, f"no model or alias is called {name!r}{meant(name, (*names, *means))}")
        seen.append(name)
        name = means[name]
    return name
