"""The engine process: loads the model, says Ready, then serves frames from one socket until it drains or is
left alone."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import time
from typing import TypeGuard

import msgspec

from firelane.contract import Executor, ProgressCallback
from firelane.engine.adapters.places import AdapterPlaces, change_adapters, load_adapters
from firelane.engine.configured import make_core
from firelane.engine.core import EngineCore
from firelane.engine.grammar.queue import grammar_queue
from firelane.engine.images.encoder import ImageEncoder
from firelane.engine.images.load import load_encoder
from firelane.engine.images.queue import with_images
from firelane.engine.process.channels import Channels, FrameChannel
from firelane.engine.process.draft_load import load_second
from firelane.engine.process.heartbeat import HeartbeatSender, Pulse
from firelane.engine.process.identity import checkpoint_identity, model_identity
from firelane.engine.process.load import load_executor, read_program, rotation_identity
from firelane.engine.process.peering import connect_peers
from firelane.engine.process.ready import can_sleep, ready_of, with_encoder, with_second
from firelane.engine.process.rights import Rights
from firelane.engine.process.standby import NO_STANDBY, EngineStandby, Standby
from firelane.engine.process.tiers import NO_TIERS, NoTiers, files_identity, open_tiers
from firelane.engine.speculation.choice import SecondModel
from firelane.engine_config import EngineConfig
from firelane.errors import FirelaneError, MachineError, PeerLostError
from firelane.kv.prefix import tenant_id
from firelane.kv.tiers import TieredPages
from firelane.kv.transfer.page_copy import PageCopier
from firelane.link.channel import Channel
from firelane.wire.adapters import AdapterChange, AdaptersServed, LoadAdapter, UnloadAdapter
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import (
    Abort,
    Asleep,
    Awake,
    Drain,
    Failed,
    ForgetTenant,
    Forgotten,
    Progress,
    Rejected,
    Sleep,
    StepFrame,
    Submit,
    TellPages,
    ToEngine,
    Wake,
)

TERMINATE_DRAIN_S = 1.0
LAST_FLUSH_S = 1.0
log = logging.getLogger(__name__)


class SocketChannel:
    """The core's channel over a socket. Knows when the engine has to end, and turns requests away from then
    on."""

    def __init__(self, channel: FrameChannel, pulse: Pulse, *, is_shared: bool = False) -> None:
        """is_shared: requests come from others than who decides about standby."""
        self._channel = channel
        self._is_shared = is_shared
        self._pulse = pulse
        self._deadline_s: float | None = None
        self._terminated = False
        self._is_busy = False
        self.is_loading = True
        self.standby: Standby = NO_STANDBY
        self.is_to_sleep = False
        self.forgotten: list[ForgetTenant] = []
        """Still to be done."""
        self.adapter_changes: list[AdapterChange] = []
        """The same, in their order."""
        self.follows_pages = False
        """A gateway wants to know of the engine's pages from now on."""

    @property
    def is_draining(self) -> bool:
        return self._deadline_s is not None

    @property
    def is_overdue(self) -> bool:
        """The time to drain is over."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    def send(
        self, frame: StepFrame | Rejected | PageChanges | Asleep | Awake | Forgotten | AdaptersServed
    ) -> None:
        self._channel.send(frame)

    def rest(self) -> None:
        """Go to standby, as it was asked for. The core has nothing to do."""
        self.is_to_sleep = False
        self._pulse.rest()  # a device copies its weights for as long as that takes; its waits have a limit
        self.send(self.standby.sleep())
        self._pulse.touch()

    def receive(self, wait_s: float | None) -> list[Submit | Abort]:
        """All frames for the core that have arrived; an engine with nothing to do waits for the next one."""
        if self._terminated and not self.is_draining:
            self._drain(TERMINATE_DRAIN_S)
        self._is_busy = wait_s is not None
        if not self._is_busy:
            self._pulse.rest()
        frames = self._channel.receive(0.0 if wait_s is None and self.is_draining else wait_s)
        self._is_busy = True
        self._pulse.touch()
        return [frame for frame in frames if self._is_for_core(frame)] if frames else []

    def terminate(self, *_: object) -> None:
        """Signal handler: end at once where nothing runs, else drain quickly."""
        if not self._is_busy:
            raise SystemExit(0)
        self._terminated = True

    def gateway_gone(self) -> None:
        """Called by the heartbeat. A load would not hear of it before its end."""
        if self.is_loading:
            os._exit(0)

    def _is_for_core(self, frame: ToEngine) -> TypeGuard[Submit | Abort]:
        if isinstance(frame, Drain):
            self._drain(frame.timeout_s)
            return False
        if isinstance(frame, Sleep):
            self.is_to_sleep = True
            return False
        if isinstance(frame, ForgetTenant):
            self.forgotten.append(frame)
            return False
        if isinstance(frame, LoadAdapter | UnloadAdapter):
            self.adapter_changes.append(frame)
            return False
        if isinstance(frame, TellPages):
            self.follows_pages = True
            return False
        if isinstance(frame, Wake | Submit):
            self._wake(is_asked=isinstance(frame, Wake))
        if isinstance(frame, Wake):
            return False
        if self.is_draining and isinstance(frame, Submit):
            for request in frame.requests:
                message = "the engine is draining: send the request elsewhere"
                self.send(Rejected(request.id, message, elsewhere=True))
            return False
        return True

    def _wake(self, *, is_asked: bool) -> None:
        """A request that comes to an engine in standby wakes it, too: for as long as it runs, where it is not
        of those who know of the standby."""
        self._pulse.rest()
        self._wake_up(is_asked=is_asked)
        self._pulse.touch()

    def _wake_up(self, *, is_asked: bool) -> None:
        if self._is_shared and not is_asked:
            if self.standby.sleeps:
                self.standby.wake()
                self.is_to_sleep = True
            return
        self.is_to_sleep = False
        if is_asked or self.standby.sleeps:
            self.send(self.standby.wake())

    def _drain(self, timeout_s: float) -> None:
        self._deadline_s = time.monotonic() + max(0.0, timeout_s)


def run(
    sock: socket.socket,
    config: EngineConfig,
    rights: Rights | None = None,
    *,
    acceptor: socket.socket | None = None,
    peer_socket: socket.socket | None = None,
) -> int:
    """Serve until drained or until the gateway closes its end; returns the exit code. Takes over the
    sockets. acceptor: over which connections of further gateways come; peer_socket: over which those to
    other engines come, as in wire.peers."""
    first: Channel[ToEngine] = Channel(sock, ToEngine)
    channel = first if acceptor is None else Channels(first, acceptor)
    pulse = Pulse()
    served = SocketChannel(channel, pulse, is_shared=acceptor is not None)
    rights = rights or Rights()
    heartbeat = HeartbeatSender(channel, pulse, served.gateway_gone, rights)
    signal.signal(signal.SIGTERM, served.terminate)
    try:
        return _load_and_serve(channel, served, pulse, config, rights, peer_socket)
    except (FirelaneError, MemoryError) as error:
        if first.is_lost:
            return 0  # whoever has started this engine
        kind = type(error).__name__ if isinstance(error, FirelaneError) else ""
        failed = Failed(f"{error}" or "out of memory", getattr(error, "exit_code", 1), kind)
        return _fail(channel, failed)
    except Exception as error:
        _fail(channel, Failed(f"internal error: {type(error).__name__}: {error}", 1))
        raise
    finally:
        heartbeat.close()
        channel.close()


def _load_and_serve(
    channel: FrameChannel,
    served: SocketChannel,
    pulse: Pulse,
    config: EngineConfig,
    rights: Rights,
    peer_socket: socket.socket | None,
) -> int:
    began_s = time.monotonic()
    program = read_program(config)
    checkpoint = checkpoint_identity(config.model_dir) + rotation_identity(program)
    files = files_identity(config)
    progress = _progress_to(channel, pulse)
    executor = load_executor(config, progress, channel.send, program)
    adapters = load_adapters(executor, config)
    second = load_second(config, program, executor, progress)
    encoder = load_encoder(config, executor, progress)
    copier = PageCopier() if peer_socket is None else _page_copier(config)
    rights.loaded()
    grammars = grammar_queue(
        config.tokenizer_dir or config.model_dir, executor.vocab_size, rights.start_trial, rights.replaced
    )
    tiers: TieredPages | NoTiers = NO_TIERS
    try:
        core = make_core(config, executor, served, with_images(grammars, encoder), second, adapters)
        if config.cache_events:
            core.tell_cache(channel.send)
        pulse.cost = core.cost
        identity = model_identity(checkpoint, executor, config)
        peers = connect_peers(
            peer_socket,
            core,
            executor.page_memory,
            identity,
            copier,
            config.kv_transfer_address,
            executor.state_memory,
            rights.agents,
        )
        tiers = open_tiers(config.tiers, core, executor.page_memory, executor.state_memory, identity + files)
        if can_sleep(executor, config):
            served.standby = EngineStandby(executor, core.kv, tiers, peers, core.drafter)
        load_s = time.monotonic() - began_s
        ready = ready_of(executor, config, identity, load_s, peers.engine_id)
        ready = msgspec.structs.replace(ready, adapters=dict(adapters.digests))
        channel.send(with_encoder(with_second(ready, second), encoder))
        served.is_loading = False
        rights.serves(lambda: _settle(executor, second, encoder))
        gc.freeze()  # what the load has made lives on: no collection need look at it again
        _serve(core, served, tiers, adapters)
        channel.flush(LAST_FLUSH_S)
        peers.close()
    finally:
        grammars.close()
        tiers.close()
        executor.release()
        for beside in (second, encoder):
            if beside is not None:
                beside.release()
    return 0


def _settle(executor: Executor, second: SecondModel | None, encoder: ImageEncoder | None) -> None:
    executor.settle()
    for beside in (second, encoder):
        if beside is not None:
            beside.settle()


def _page_copier(config: EngineConfig) -> PageCopier:
    from firelane.kv.transfer.native import page_copier  # here: few engines have peers

    return page_copier(config.cache_dir)


def _forget(
    core: EngineCore, tiers: TieredPages | NoTiers, asked: ForgetTenant, served: SocketChannel
) -> None:
    """The KV cache first, so that nothing of it is stored behind the tiers."""
    tenant = tenant_id(asked.tenant)
    here = core.forget_tenant(tenant)

    def done(erased: int) -> None:
        with contextlib.suppress(PeerLostError):
            served.send(Forgotten(asked.tenant, here + erased, asked.id))

    tiers.forget(tenant, done)


def _serve(
    core: EngineCore, served: SocketChannel, tiers: TieredPages | NoTiers, adapters: AdapterPlaces
) -> None:
    """Until it is drained. What fails here is no start that failed: the gateway goes on with another engine,
    so the log has to say why."""
    try:
        while not (served.is_draining and core.is_idle):
            if served.is_overdue:
                core.abort_all()
            if served.is_to_sleep:
                core.expect_nothing()
            if served.is_to_sleep and core.is_idle:
                served.rest()
            while served.forgotten:
                _forget(core, tiers, served.forgotten.pop(), served)
            while served.adapter_changes:
                served.send(change_adapters(adapters, served.adapter_changes.pop(0), core.adapters_in_use))
            if adapters.has_leaving and core.is_idle:
                adapters.sweep(core.adapters_in_use)
            if served.follows_pages:
                served.follows_pages = False
                core.kv.pages.follow()
            core.step()
    except MachineError as error:
        log.error("engine_failed error=%r", str(error))
        raise


def _progress_to(channel: FrameChannel, pulse: Pulse) -> ProgressCallback:
    """Reports come from the threads that compile and pack, and may meet the frame that tells a failure."""

    def report(stage: str, done: float, total: float, unit: str) -> None:
        pulse.touch()
        channel.send(Progress(stage, done, total, unit))

    return report


def _fail(channel: FrameChannel, failed: Failed) -> int:
    with contextlib.suppress(PeerLostError):
        channel.send(failed)
        channel.flush(LAST_FLUSH_S)
    return failed.exit_code
