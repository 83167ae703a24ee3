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
    which has its pages from there. An engine that starts again in its place keeps the role. On another host
    it has this role for this gateway alone. Raises RequestError."""
    link = _named(engines, name)
    if link.is_shared and not link.is_remote:
        raise RequestError("roles are changed with one gateway alone: leave out --gateways")
    if not link.engine_id:
        raise RequestError(f"its pages do not travel: {_how_pages_travel(link)}")
    if link.role == role:
        return link
    log.info("role_changed replica=%s role=%s in_flight=%d", link.name, role, link.in_flight)
    link.assign_role(role)
    if role == "prefill":
        engines.move(link, link.in_flight, gives_pages=True)
    return link


def _how_pages_travel(link: EngineLink) -> str:
    if link.is_remote:
        return "start `firelane engine` there with --kv-transfer-address"
    return "start the server with --prefill and --decode, or --share-pages"


def _named(engines: ReplicaSet, name: str) -> EngineLink:
    serving = [link for link in engines.links if link.state is LinkState.READY]
    for link in serving:
        if link.name == name:
            return link
    names = ", ".join(link.name for link in serving) or "none"
    raise RequestError(f"no engine '{name}' serves: there are {names}", param="engine")
