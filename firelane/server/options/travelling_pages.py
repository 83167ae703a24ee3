"""Engines whose pages travel to others, and what keeps them from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.engine_config import EngineConfig


def refuse(option: str, *cases: tuple[bool, str, str]) -> None:
    """Raises UsageError for the first case that is there: what was given beside the option, and why not."""
    for is_wrong, given, why in cases:
        if is_wrong:
            raise UsageError(f"{given} beside {option}: {why}; leave out one or the other")


def check_travelling(engine: EngineConfig, option: str) -> None:
    """Raises UsageError where pages of such engines do not travel, as the option wants it."""
    from firelane.backends import takes_gpu

    hosts, ranks = engine.hosts, engine.ranks_option
    refuse(
        option,
        (not engine.prefix_cache, "--no-prefix-cache", "pages are found by the prefix cache"),
        (
            hosts is not None,
            f"--nnodes {hosts.count if hosts else 1}",
            "pages of several hosts do not travel",
        ),
        (bool(ranks) and takes_gpu(engine.backend), ranks, "pages of several GPUs do not travel"),
    )


def check_mapped(engine: EngineConfig, option: str) -> None:
    """Raises UsageError where nobody can map the pages of such engines, as the option wants it."""
    from firelane.backends import takes_gpu

    ranks = engine.ranks_option
    refuse(
        option,
        (bool(ranks), ranks, "pages of several ranks travel over the connection"),
        (
            takes_gpu(engine.backend),
            f"--backend {engine.backend}",
            "pages of a GPU travel over the connection",
        ),
    )
