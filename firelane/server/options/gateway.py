"""The configuration of a gateway that options give."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from firelane import env
from firelane.errors import UsageError
from firelane.gateway.config import GatewayConfig, HttpsFiles, ModelConfig, is_loopback
from firelane.options import Values, fields


def check_access(values: Values) -> None:
    """Raises UsageError where the server would be open to other machines by oversight."""
    host = values.get("host", GatewayConfig.host)
    if "api_keys" not in values and not values.get("allow_anonymous") and not is_loopback(host):
        raise UsageError(
            f"--host {host} lets other machines in, and no key would be needed: "
            "give --api-keys FILE, or --allow-anonymous if that is meant"
        )


def gateway_config(
    values: Values, models: Sequence[ModelConfig], cache_dir: Path, name: str
) -> GatewayConfig:
    """The configuration that options give. name: of the directory of files and batches. Raises UsageError."""
    check_access(values)
    given = fields(GatewayConfig, values)
    given.setdefault("wait", len(models) == 1)
    given.setdefault("data_dir", _data_dir(cache_dir, name, given.get("port", GatewayConfig.port)))
    given.setdefault("otlp_endpoint", "" if env.otlp_configured() else None)
    if (limits := given.get("limits")) is not None:
        given["limits"] = replace(limits, receive_s=3 * limits.header_s)
    https = HttpsFiles(**fields(HttpsFiles, values))
    return GatewayConfig(models=tuple(models), run_dir=cache_dir / "run", tls=https.files(), **given)


def _data_dir(cache_dir: Path, name: str, port: int) -> Path:
    """Servers of one name on two ports have a directory each."""
    place = "model-" + urllib.parse.quote(name, safe="")
    return cache_dir / "data" / (place if port == GatewayConfig.port else f"{place}@{port}")
