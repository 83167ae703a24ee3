"""Configurations of the engines of one model: each replica's share of cores and memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec

from firelane.backends import takes_gpu
from firelane.cluster.config import RemoteConfig
from firelane.engine_config import CARE, STEP_DEADLINE, EngineConfig
from firelane.gateway.config import REPLICAS
from firelane.gateway.kv_events.config import KvEventsConfig
from firelane.native import cgroup
from firelane.native.machine import cpu_identity
from firelane.node.remote_peers import RemotePeersConfig
from firelane.options import Option

MOST_REPLICAS = 256


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engines of one model. engine: what all replicas have in common. prefill, decode: where engines have
    roles, how many of each; replicas is their sum then. models: those that share this machine; index: of this
    one among them. step_deadline_s: None: the default. remote: where engines are that are not processes of
    this one. kv_events: who is told of each engine's prefix cache; None: nobody. remote_peers: how pages
    travel to and from engines of other servers; None: they do not.
    """

    engine: EngineConfig
    replicas: Annotated[
        int,
        Option(
            "engines behind this gateway, each with its share of the cores and of the KV cache",
            REPLICAS,
            least=1,
            most=MOST_REPLICAS,
            see="serving.md#replicas-and-engines-that-die",
        ),
    ] = 1
    prefill: Annotated[
        int | None,
        Option(
            "in place of --replicas: engines that compute prompts; --prefill and --decode go together",
            REPLICAS,
            least=1,
            most=MOST_REPLICAS,
            see="cluster.md",
        ),
    ] = None
    decode: Annotated[
        int | None,
        Option(
            "in place of --replicas: engines that go on from there; --prefill and --decode go together",
            REPLICAS,
            least=1,
            most=MOST_REPLICAS,
            see="cluster.md",
        ),
    ] = None
    models: int = 1
    index: int = 0
    engine_timeout_s: Annotated[
        float,
        Option(
            "an engine that shows no life for so many seconds is replaced",
            CARE,
            flag="engine-timeout",
            metavar="S",
        ),
    ] = 5.0
    step_deadline_s: Annotated[float | None, STEP_DEADLINE] = None
    remote: RemoteConfig | None = None
    kv_events: KvEventsConfig | None = None
    remote_peers: RemotePeersConfig | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of each engine; none where all do the same."""
        return ("prefill",) * (self.prefill or 0) + ("decode",) * (self.decode or 0)

    def configs(self, *, shares_pages: bool = False) -> list[EngineConfig]:
        """One for each replica, with its share of the cores and of the memory. shares_pages: they have pages
        from each other."""
        configs = self._shares()
        if (remote := self.remote_peers) is not None:
            configs = [
                msgspec.structs.replace(config, kv_transfer_address=remote.address(place))
                for place, config in enumerate(configs)
            ]
        if not self.roles and not shares_pages:
            return configs
        # In shared memory, where pages can be: the other engines map it.
        is_private = self.engine.backend == "null" or takes_gpu(self.engine.backend)
        memory = "private" if is_private else "shared"
        return [
            msgspec.structs.replace(config, role=role, kv_cache_memory=memory)
            for config, role in zip(configs, self.roles or ("both",) * len(configs), strict=True)
        ]

    def _shares(self) -> list[EngineConfig]:
        engine, number = self.engine, self.replicas
        if number * self.models == 1:
            return [engine]
        kv_bytes = engine.kv_cache_bytes and max(1, engine.kv_cache_bytes // number)
        tiers = engine.tiers and engine.tiers.share(number)
        engine = msgspec.structs.replace(
            engine, replicas=number * self.models, kv_cache_bytes=kv_bytes, tiers=tiers
        )
        if engine.backend == "cuda":
            return [engine] * number
        cores = share_out(sorted(os.sched_getaffinity(0)), number) if number > 1 else [None]
        teams = [engine.threads] * number if engine.threads else self._teams(cores)
        pairs = zip(cores, teams, strict=True)
        return [msgspec.structs.replace(engine, cores=own, threads=team) for own, team in pairs]

    def _teams(self, cores: Sequence[tuple[int, ...] | None]) -> Sequence[int | None]:
        """Threads of each replica; None: as many as there are cores. Models take turns on the same cores, but
        under a quota the threads of all are stopped when they have used it up: then they share it.
        """
        if not _is_bounded():
            return share_threads(cores) if len(cores) > 1 else [None]
        parts = [part for part in cores for _ in range(self.models)]
        return share_threads(parts)[self.index :: self.models]


def _is_bounded() -> bool:
    """Whether a quota allows less than the processors would."""
    quota = cgroup.cpu_quota()
    return quota is not None and quota < len(os.sched_getaffinity(0))


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
    """Bounds of equal parts: where each begins, and the last one ends."""
    return [i * size // number for i in range(number + 1)]
