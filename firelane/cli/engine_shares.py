"""Configurations of the engines of one model: each replica's share of cores and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from firelane.engine_config import EngineConfig
from firelane.native.machine import cpu_identity


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engines of one model. engine: what all replicas have in common. models: those that share this
    machine's memory. recovery: requests go on when their engine dies. engine_timeout_s: an engine that shows
    no life for so long is replaced; step_deadline_s: one whose step takes longer (None: the default).
    """

    engine: EngineConfig
    replicas: int = 1
    models: int = 1
    recovery: bool = True
    engine_timeout_s: float = 5.0
    step_deadline_s: float | None = None

    def configs(self) -> list[EngineConfig]:
        """One for each replica, with its share of the cores and of the memory."""
        engine, number = self.engine, self.replicas
        if number * self.models == 1:
            return [engine]
        kv_bytes = engine.kv_cache_bytes and max(1, engine.kv_cache_bytes // number)
        engine = msgspec.structs.replace(engine, replicas=number * self.models, kv_cache_bytes=kv_bytes)
        if engine.backend == "cuda" or number == 1:
            return [engine] * number
        cores = share_out(sorted(os.sched_getaffinity(0)), number)
        teams = [engine.threads] * number if engine.threads else share_threads(cores)
        pairs = zip(cores, teams, strict=True)
        return [msgspec.structs.replace(engine, cores=own, threads=team) for own, team in pairs]


def share_out(cores: Sequence[int], number: int) -> list[tuple[int, ...] | None]:
    """Disjoint parts of the cores, neighbours together; None (all cores) where there are fewer than parts."""
    if len(cores) < number:
        return [None] * number
    return [tuple(cores[begin:end]) for begin, end in pairwise(_bounds(len(cores), number))]


def share_threads(parts: Sequence[tuple[int, ...] | None]) -> list[int]:
    """Threads for each part of the cores: together no more than the physical cores, and a quota, allow; one
    at least.
    """
    shares = pairwise(_bounds(cpu_identity().usable_cores, len(parts)))
    return [
        max(1, min(end - begin, cpu_identity(part).usable_cores))
        for part, (begin, end) in zip(parts, shares, strict=True)
    ]


def _bounds(size: int, number: int) -> list[int]:
    """Where equal parts begin, and the last one ends."""
    return [i * size // number for i in range(number + 1)]
