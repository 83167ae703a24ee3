"""The configuration of an engine, from the command line to the backend: nothing is copied on the way.

A field of a config declares its option: its help, its values and their range (firelane.options).
"""

from __future__ import annotations

from firelane.engine_config.engine import (
    BACKENDS,
    KV_TRANSPORTS,
    ROLES,
    SCHEDULING_POLICIES,
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
    WEIGHTS,
    WEIGHTS_PAGES,
    ExecutorConfig,
)
from firelane.engine_config.groups import ENGINE, PAGES
from firelane.engine_config.hosts import HostsConfig
from firelane.engine_config.tiers import GIB, KV_ADMISSIONS, TiersConfig

__all__ = [
    "ACTIVATION_DTYPES",
    "BACKENDS",
    "DTYPES",
    "ENGINE",
    "GEMMS",
    "GIB",
    "KV_ADMISSIONS",
    "KV_CACHE_CODES",
    "KV_CACHE_DTYPES",
    "KV_CACHE_MEMORY",
    "KV_TRANSPORTS",
    "PAGES",
    "QUANTIZING",
    "ROLES",
    "SCHEDULING_POLICIES",
    "STORE_INDEX",
    "WEIGHTS",
    "WEIGHTS_PAGES",
    "EngineConfig",
    "ExecutorConfig",
    "HostsConfig",
    "TiersConfig",
]
