"""Roles of engines, changed while they serve."""

from __future__ import annotations

import logging

from firelane.engine_state import LinkState
from firelane.errors import RequestError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.replicas import ReplicaSet

log = logging.getLogger(__name__)


def change_role(engines: ReplicaSet, name: str, role: str) -> EngineLink:
    """Have the engine of this name do this part of requests, or both, from now on: as `take_role`, here and
    in all other gateway processes. An engine on another host has this role for this gateway alone. Raises
    RequestError."""
    link = _named(engines, name)
    if not link.load.engine_id:
        raise RequestError(f"its pages do not travel: {_how_pages_travel(link)}")
    if link.load.role != role:
        log.info("role_changed replica=%s role=%s in_flight=%d", link.name, role, link.load.sequences)
        take_role(engines, link, role)
    return link


def take_role(engines: ReplicaSet, link: EngineLink, role: str) -> None:
    """The engine's requests follow its role. One for prefill ends the prompts that it has; what decodes on
    one that becomes an engine for prefill goes on at another one, which has its pages from there. An engine
    that starts again in its place keeps the role."""
    before = link.load.role
    link.lifecycle.assign_role(role)
    if link.load.role == "prefill" and before != "prefill":
        engines.move(link, link.in_flight, gives_pages=True)


def _how_pages_travel(link: EngineLink) -> str:
    if link.engine.is_remote:
        return "start `firelane engine` there with --kv-transfer-address"
    return "start the server with --prefill and --decode, or --share-pages"


def _named(engines: ReplicaSet, name: str) -> EngineLink:
    serving = [link for link in engines.links if link.state is LinkState.READY]
    for link in serving:
        if link.name == name:
            return link
    names = ", ".join(link.name for link in serving) or "none"
    raise RequestError(f"no engine '{name}' serves: there are {names}", param="engine")
