"""The configuration of an engine, from the command line to the backend: nothing is copied on the way.

A field of a config declares its option: its help, its values and their range (firelane.options).
"""

from __future__ import annotations

from firelane.engine_config.engine import (
    BACKENDS,
    DRAFT,
    EAGLE3,
    KV_TRANSPORTS,
    ROLES,
    SCHEDULING_POLICIES,
    SPECULATIVE,
    STORE_INDEX,
    EngineConfig,
)
from firelane.engine_config.executor import (
    ACTIVATION_DTYPES,
    DTYPES,
    GEMMS,
    KV_CACHE_CODES,
    KV_CACHE_DTYPES,
    KV_CACHE_MEMORY,
    QUANTIZING,
    STEP_DEADLINE,
    WEIGHTS,
    WEIGHTS_PAGES,
    Beside,
    ExecutorConfig,
)
from firelane.engine_config.groups import ADAPTERS, CARE, ENGINE, HOSTS, PAGES, TIERS
from firelane.engine_config.hosts import HOSTS_PORT, HostsConfig, KeyFile
from firelane.engine_config.tiers import GIB, KV_ADMISSIONS, TiersConfig

__all__ = [
    "ACTIVATION_DTYPES",
    "ADAPTERS",
    "BACKENDS",
    "CARE",
    "DRAFT",
    "DTYPES",
    "EAGLE3",
    "ENGINE",
    "GEMMS",
    "GIB",
    "HOSTS",
    "HOSTS_PORT",
    "KV_ADMISSIONS",
    "KV_CACHE_CODES",
    "KV_CACHE_DTYPES",
    "KV_CACHE_MEMORY",
    "KV_TRANSPORTS",
    "PAGES",
    "QUANTIZING",
    "ROLES",
    "SCHEDULING_POLICIES",
    "SPECULATIVE",
    "STEP_DEADLINE",
    "STORE_INDEX",
    "TIERS",
    "WEIGHTS",
    "WEIGHTS_PAGES",
    "Beside",
    "EngineConfig",
    "ExecutorConfig",
    "HostsConfig",
    "KeyFile",
    "TiersConfig",
]
