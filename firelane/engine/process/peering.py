"""Whether an engine has peers: the code of these is loaded where it has."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from firelane.contract import PageMemory
from firelane.engine.core import EngineCore
from firelane.kv.transfer.page_copy import PageCopier
from firelane.nixl.processes import HelperAgents

if TYPE_CHECKING:
    from firelane.engine.process.peers import EnginePeers

log = logging.getLogger(__name__)


class NoPeers:
    """The peers of an engine whose pages do not travel."""

    engine_id = ""

    def standby(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


NO_PEERS = NoPeers()


def connect_peers(
    sock: socket.socket | None,
    core: EngineCore,
    memory: PageMemory | None,
    identity: str,
    copier: PageCopier,
    address: str = "",
    states: PageMemory | None = None,
    agents: HelperAgents | None = None,
) -> EnginePeers | NoPeers:
    """Takes over the agents and the socket of wire.peers; None: an engine without peers. address, states,
    agents: as in EnginePeers. Pages of a model with recurrent state are of no use without its snapshots."""
    if sock is not None and memory is not None and not (core.kv.states.is_kept and states is None):
        from firelane.engine.process.peers import EnginePeers

        return EnginePeers(sock, core, memory, identity, copier, address, states, agents)
    if agents is not None:
        agents.close()
    if sock is not None:
        log.info("pages do not travel: this engine computes all prompts that it gets")
        sock.close()
    return NO_PEERS
