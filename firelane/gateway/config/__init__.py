"""Configuration of a gateway: what it is made of before its own code is loaded.

A field of a config declares its option: its help, its values and their range (firelane.options).
"""

from __future__ import annotations

from firelane.gateway.config.groups import ANSWERS, FILES, LIMITS, REPLICAS, SERVER, TENANTS
from firelane.gateway.config.limits import FileLimits, HttpLimits, HttpsFiles, StreamLimits
from firelane.gateway.config.model import TRIALS, ModelConfig, Routing, SharesPages
from firelane.gateway.config.server import MOST_GATEWAYS, GatewayConfig, is_loopback

__all__ = [
    "ANSWERS",
    "FILES",
    "LIMITS",
    "MOST_GATEWAYS",
    "REPLICAS",
    "SERVER",
    "TENANTS",
    "TRIALS",
    "FileLimits",
    "GatewayConfig",
    "HttpLimits",
    "HttpsFiles",
    "ModelConfig",
    "Routing",
    "SharesPages",
    "StreamLimits",
    "is_loopback",
]
