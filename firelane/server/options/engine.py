"""Engines of a model that options give: how many there are, their roles, and the care for them."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import msgspec

from firelane.engine_config import EngineConfig, HostsConfig, TiersConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.config import ModelConfig
from firelane.options import Values, fields
from firelane.server.engine_shares import EngineOptions
from firelane.server.options.travelling_pages import check_travelling

log = logging.getLogger(__name__)


def engine_config(
    values: Values,
    model_dir: Path,
    environment: Environment,
    tokenizer_dir: Path | None = None,
    hosts: HostsConfig | None = None,
) -> EngineConfig:
    """The engine that options give. Raises UsageError."""
    given = fields(EngineConfig, values)
    if (tiers := given.get("tiers")) is not None:
        given["tiers"] = prepared(tiers)
    if "speculative" in given:
        from firelane.sources.draft import draft_directory

        given["draft_dir"] = draft_directory(given["speculative"], tokenizer_dir, environment.cache_dir)
    return EngineConfig(
        model_dir=model_dir,
        cache_dir=environment.cache_dir,
        tokenizer_dir=tokenizer_dir,
        hosts=hosts,
        **given,
    )


def tell_sandbox(engine: EngineConfig, settings: Environment) -> None:
    """Once, what this machine's sandbox does not keep engines from."""
    from firelane.sandbox.confine import lacks

    lacking = lacks(settings) if engine.sandbox else None
    if lacking is not None:
        log.warning("sandbox: %s", lacking)


def engine_options(values: Values, engine: EngineConfig, models: int = 1, index: int = 0) -> EngineOptions:
    """The engines that options give. models, index: as in EngineOptions. Raises UsageError."""
    made = EngineOptions(engine=engine, models=models, index=index, **fields(EngineOptions, values))
    _check_roles(values, engine)
    if not are_elsewhere(values) and fields(ModelConfig, values).get("shares_pages"):
        _check_shared_pages(made)
    return replace(made, replicas=len(made.roles) or made.replicas)


def _check_shared_pages(made: EngineOptions) -> None:
    if made.roles or made.replicas == 1:
        raise UsageError("--share-pages is of --replicas: say with it how many engines there are")
    check_travelling(made.engine, "--share-pages")


def are_elsewhere(values: Values) -> bool:
    """Engines are on other hosts, and know themselves whether their pages travel."""
    return "engines" in values


def check_controller(values: Values) -> None:
    """Raises UsageError where there are no roles that a controller could change."""
    if "role_controller" in values and "prefill" not in values and not are_elsewhere(values):
        raise UsageError("--role-controller: there are no roles to change; give --prefill and --decode, too")


def _check_roles(values: Values, engine: EngineConfig) -> None:
    """Raises UsageError for roles that cannot be."""
    given = [role for role in ("prefill", "decode") if role in values]
    if not given:
        return
    if len(given) == 1:
        missing = "decode" if given == ["prefill"] else "prefill"
        raise UsageError(f"--{given[0]} alone: say with --{missing} how many engines do the rest")
    option = "--prefill and --decode"
    if values.get("replicas", 1) != 1:
        raise UsageError(
            f"--replicas beside {option}: the number of engines is said twice; leave out one or the other"
        )
    check_travelling(engine, option)


def prepared(tiers: TiersConfig) -> TiersConfig:
    """The same tiers, with paths that do not depend on the current directory; the one on a drive has its
    directory. Raises UsageError."""
    disk, key_file = tiers.disk, tiers.disk_key_file
    return msgspec.structs.replace(
        tiers,
        disk=None if disk is None else _directory(disk),
        disk_key_file=None if key_file is None else key_file.absolute(),
    )


def _directory(path: Path) -> Path:
    """A directory that nobody else writes to, made where it is not there. Raises UsageError."""
    path = path.absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UsageError(f"--kv-disk {path}: {error.strerror or error}") from None
    # Its group may: volumes of Kubernetes belong to root and the pod's fsGroup.
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise UsageError(
            f"--kv-disk {path}: other users can put pages there; chmod o-w it, or take a directory of "
            "your own"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"--kv-disk {path}: it cannot be written to; take another one")
    return path
