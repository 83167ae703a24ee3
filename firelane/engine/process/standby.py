"""Standby of an engine: the process stays, and the memory of its executor goes back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from firelane.contract import NOTHING, Executor, GivenBack, private_bytes
from firelane.engine.process.peering import NO_PEERS, NoPeers
from firelane.engine.process.tiers import NO_TIERS, NoTiers
from firelane.kv import KvCache
from firelane.kv.tiers import TieredPages
from firelane.wire.frames import Asleep, Awake

if TYPE_CHECKING:
    from firelane.engine.process.peers import EnginePeers
    from firelane.engine.speculation.drafter import Drafter


class Standby:
    """Standby of an executor that does not sleep."""

    sleeps = False

    def sleep(self) -> Asleep:
        """While no sequence lives and no step runs."""
        return Asleep(0, private_bytes(), 0.0)

    def wake(self) -> Awake:
        """Before the next step. Raises OutOfMemoryError."""
        return Awake(0.0)


NO_STANDBY = Standby()


class EngineStandby(Standby):
    """Standby of an executor, of the cache whose memory it holds, and the tiers in memory: what later prompts
    could find there is forgotten. Other engines (peers) let go of that memory first. Owns none of them."""

    def __init__(
        self,
        executor: Executor,
        kv: KvCache,
        tiers: TieredPages | NoTiers = NO_TIERS,
        peers: EnginePeers | NoPeers = NO_PEERS,
        drafter: Drafter | None = None,
    ) -> None:
        """drafter: what has memory of its own for drafts; None: nothing has."""
        self._executor, self._kv, self._tiers, self._peers = executor, kv, tiers, peers
        self._drafter = drafter
        self.sleeps, self._others = False, NOTHING

    def sleep(self) -> Asleep:
        began_s, before, released = time.monotonic(), private_bytes(), 0
        if not self.sleeps:
            self.sleeps = True
            self._kv.forget()
            self._peers.standby()
            self._tiers.standby()
            self._others = self._executor.standby()
            if self._drafter is not None:
                self._others = _together(self._others, self._drafter.standby())
            released = self._others.released_bytes
        held = private_bytes()
        released += max(0, before - held)
        return Asleep(released, held + self._others.resident_bytes, time.monotonic() - began_s)

    def wake(self) -> Awake:
        began_s = time.monotonic()
        if self.sleeps:
            self._executor.wake()
            if self._drafter is not None:
                self._drafter.wake()
            self._peers.wake()
            self.sleeps = False
        return Awake(time.monotonic() - began_s)


def _together(one: GivenBack, other: GivenBack) -> GivenBack:
    return GivenBack(one.released_bytes + other.released_bytes, one.resident_bytes + other.resident_bytes)
