"""Standby of an engine: the process stays, and the memory of its executor goes back."""

from __future__ import annotations

import time

from firelane.contract import NOTHING, Executor, private_bytes
from firelane.engine.process.peers import NO_PEERS, EnginePeers, NoPeers
from firelane.engine.process.tiers import NO_TIERS, NoTiers
from firelane.kv import KvCache
from firelane.kv.tiers import TieredPages
from firelane.wire.frames import Asleep, Awake


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
    ) -> None:
        self._executor, self._kv, self._tiers, self._peers = executor, kv, tiers, peers
        self.sleeps, self._others = False, NOTHING

    def sleep(self) -> Asleep:
        began_s, before, released = time.monotonic(), private_bytes(), 0
        if not self.sleeps:
            self.sleeps = True
            self._kv.forget()
            self._peers.standby()
            self._tiers.standby()
            self._others = self._executor.standby()
            released = self._others.released_bytes
        held = private_bytes()
        released += max(0, before - held)
        return Asleep(released, held + self._others.resident_bytes, time.monotonic() - began_s)

    def wake(self) -> Awake:
        began_s = time.monotonic()
        if self.sleeps:
            self._executor.wake()
            self._peers.wake()
            self.sleeps = False
        return Awake(time.monotonic() - began_s)
