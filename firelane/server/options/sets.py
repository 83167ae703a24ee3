"""The options of each command that runs engines or a gateway: whose fields declare them, in which groups its
help tells them."""

from __future__ import annotations

from firelane.cluster.config import ENGINES, GATEWAYS, EngineAddresses, EngineListener
from firelane.engine_config import (
    ADAPTERS,
    CARE,
    ENGINE,
    HOSTS,
    PAGES,
    TIERS,
    EngineConfig,
    HostsConfig,
)
from firelane.gateway.config import (
    ANSWERS,
    FILES,
    LIMITS,
    REPLICAS,
    SERVER,
    TENANTS,
    GatewayConfig,
    HttpsFiles,
    ModelConfig,
)
from firelane.options import OptionSet
from firelane.options.log_format import TELEMETRY
from firelane.server.engine_shares import EngineOptions
from firelane.server.options.router import ROUTERS, PageExchange, Routers
from firelane.server.options.served_models import ServedModels

SERVE = OptionSet(
    (
        *(ServedModels, GatewayConfig, HttpsFiles, ModelConfig, EngineConfig, EngineOptions),
        *(EngineAddresses, HostsConfig, PageExchange, Routers),
    ),
    (
        *(SERVER, ENGINE, REPLICAS, ANSWERS, TENANTS, LIMITS, FILES, TELEMETRY, ADAPTERS, CARE),
        *(TIERS, HOSTS, ENGINES, PAGES, ROUTERS),
    ),
    without=("role",),
)
ENGINE_COMMAND = OptionSet(
    (EngineListener, EngineConfig, EngineOptions, PageExchange),
    (GATEWAYS, ENGINE, ADAPTERS, CARE, TIERS, PAGES, TELEMETRY),
)
NODE_SERVER = OptionSet(
    (GatewayConfig, HttpsFiles),
    (SERVER, TENANTS, LIMITS, FILES, TELEMETRY),
    without=("any_model", "wait"),
)
"""The table of a node's file that describes the server. A node has several models, and waits for none."""
NODE_ENGINE = OptionSet((EngineConfig, EngineOptions, ModelConfig), (ENGINE, ADAPTERS, CARE, REPLICAS, TIERS))
NODE_MODEL = OptionSet(
    (EngineConfig, EngineOptions, ModelConfig), (ENGINE, ADAPTERS, CARE, REPLICAS, TIERS, ANSWERS)
)
"""The tables for the engines of all models, and for one model."""
