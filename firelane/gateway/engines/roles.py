"""Roles of engines, changed while they serve."""

from __future__ import annotations

import logging

from firelane.errors import RequestError
from firelane.gateway.engines.link import EngineLink
from firelane.gateway.engines.link_state import LinkState
from firelane.gateway.engines.replicas import ReplicaSet

log = logging.getLogger(__name__)


def change_role(engines: ReplicaSet, name: str, role: str) -> EngineLink:
    """Have the engine of this name do this part of requests, or both, from now on. An engine for prefill ends
    the prompts that it has; what decodes on one that becomes an engine for prefill goes on at another one,
    which has its pages from there. An engine that starts again in its place keeps the role. Raises
    RequestError."""
    link = _named(engines, name)
    if link.is_shared:
        raise RequestError("roles are changed with one gateway alone: leave out --gateways")
    if not link.engine_id:
        raise RequestError(
            "its pages do not travel: start the server with --prefill and --decode, or --share-pages"
        )
    if link.role == role:
        return link
    log.info("role_changed replica=%s role=%s in_flight=%d", link.name, role, link.in_flight)
    link.assign_role(role)
    if role == "prefill":
        engines.move(link, link.in_flight, pages_at=link.engine_id)
    return link


def _named(engines: ReplicaSet, name: str) -> EngineLink:
    serving = [link for link in engines.links if link.state is LinkState.READY]
    for link in serving:
        if link.name == name:
            return link
    names = ", ".join(link.name for link in serving) or "none"
    raise RequestError(f"no engine '{name}' serves: there are {names}", param="engine")
