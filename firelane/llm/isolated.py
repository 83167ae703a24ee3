"""An engine in a process of its own, which gives up its rights before it reads the model."""

from __future__ import annotations

import logging
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress
from typing import NoReturn

from firelane import env, errors
from firelane.child_process import Child
from firelane.child_process.child import in_words, no_process
from firelane.engine_config import EngineConfig
from firelane.engine_config.passing import send_config
from firelane.errors import (
    EngineDeadError,
    FirelaneError,
    FrameError,
    MachineError,
    PeerLostError,
    UsageError,
)
from firelane.link.channel import Channel
from firelane.llm.channel import LocalChannel
from firelane.sandbox.confine import lacks
from firelane.weights.progress import Progress, silent
from firelane.wire import frames
from firelane.wire.frames import Drain, Failed, FromEngine, Submit
from firelane.wire.submissions import submissions

log = logging.getLogger(__name__)
MODULE = "firelane.engine"
SILENCE_S = 60.0
"""Without a frame, of an engine that sends one each second: it hangs, or is stopped."""
LOOK_S = 5.0
"""Between two looks at the clock while nothing comes."""
END_S = 5.0
"""For an engine to end by itself."""


class IsolatedEngine:
    """The engine of an isolated LLM. Owns the process, which starts at once and loads while its parent reads
    the tokenizer, and ends with the thread that made it. Raises MachineError where there can be no process.
    """

    def __init__(self, config: EngineConfig, channel: LocalChannel) -> None:
        self.adapters: dict[str, str] = {}
        """Digests of the adapters' content, by name, once it is loaded."""
        self._channel = channel
        self._is_ready = self._is_closed = False
        self._failure: FirelaneError | None = None
        self._progress: Progress = silent
        self._heard_s = time.monotonic()
        self._came: deque[FromEngine] = deque()
        lacking = lacks(env.read()) if config.sandbox else None
        if lacking is not None:
            log.warning("sandbox: %s", lacking)
        try:
            self._child, sock = _launch(config)
        except OSError as error:
            raise no_process("the engine", error) from error
        self._socket: Channel[FromEngine] = Channel(sock, FromEngine)

    @property
    def pid(self) -> int:
        return self._child.pid

    def load(self, progress: Progress) -> None:
        self._progress = progress
        while not self._is_ready:
            self._listen(is_loading=True)

    def turn(self) -> None:
        """Go on until something has come of the open choices, or a second is over. Raises a FirelaneError
        where the engine cannot go on.
        """
        if self._failure is not None:
            raise self._failure
        self._send()
        if self._channel.open:
            self._listen()

    def tell(self) -> None:
        """No turn may follow for a while: the engine hears now of what was aborted. Raises nothing."""
        if self._failure is None and not self._is_closed:
            self._send()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_ready and self._failure is None:
                with suppress(PeerLostError):
                    self._socket.send(Drain(0.0))
                self._child.ends_within(END_S)
        finally:
            self._child.end()
            self._socket.close()

    def _send(self) -> None:
        """New requests and aborts. Where the engine has gone, it may have said why: whoever listens hears."""
        with suppress(PeerLostError):
            for frame in self._channel.receive(0.0):
                for part in submissions(frame.requests) if isinstance(frame, Submit) else (frame,):
                    self._socket.send(part)

    def _listen(self, *, is_loading: bool = False) -> None:
        """Take frames up to the next one of a step, as an engine in this process makes one step a turn."""
        if not self._came:
            self._came.extend(self._receive(is_loading=is_loading))
        while self._came:
            frame = self._came.popleft()
            self._take(frame)
            if isinstance(frame, frames.StepFrame):
                return

    def _receive(self, *, is_loading: bool) -> list[FromEngine]:
        """Wait for frames."""
        try:
            came = self._socket.receive(LOOK_S)
        except FrameError as error:
            self._lose(f"engine process {self.pid} sends what nobody understands ({error}): start again")
        except PeerLostError:
            self._lose()
        if came:
            self._heard_s = time.monotonic()
        elif not is_loading and time.monotonic() - self._heard_s >= SILENCE_S:
            self._lose(f"engine process {self.pid} shows no life for {SILENCE_S:g} s: start again")
        return came

    def _take(self, frame: FromEngine) -> None:
        if isinstance(frame, frames.StepFrame | frames.Rejected):
            self._channel.send(frame)
        elif isinstance(frame, frames.Progress):
            self._progress(frame.stage, frame.done, frame.total, frame.unit)
        elif isinstance(frame, frames.Ready):
            self._is_ready, self.adapters = True, frame.adapters
        elif isinstance(frame, Failed):
            self._failure = _error(frame)
            raise self._failure

    def _lose(self, message: str = "") -> NoReturn:
        """The engine is of no use any more. message: why, where its end does not tell."""
        has_ended = not message and self._child.ends_within(END_S)
        code = self._child.end()
        if not message:
            how = in_words(code) if has_ended else "has closed its connection"
            message = f"engine process {self.pid} {how}: start again"
        self._failure = EngineDeadError(message)
        raise self._failure from None


def _launch(config: EngineConfig) -> tuple[Child, socket.socket]:
    """The process, and this end of its connection. Raises OSError."""
    level = env.read().log_level
    environ = env.for_engine(
        stores=config.reads_store,
        hosts=config.hosts is not None,
        FIRELANE_LOG_LEVEL="warning" if level == "info" else level,  # as without a server's log
    )
    # What is typed here is not for the model; Ctrl-C reaches this process alone.
    streams = (subprocess.DEVNULL, subprocess.DEVNULL, None)
    child, ours = Child.connected([MODULE], environ, streams=streams, leads_group=True)
    with suppress(PeerLostError):  # its end is noticed as that of any engine
        send_config(ours, config, {})
    return child, ours


def _error(failed: Failed) -> FirelaneError:
    """The error that the engine ended with, as its own class."""
    kind: object = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, FirelaneError):
        return kind(failed.message)
    return (
        UsageError(failed.message)
        if failed.exit_code == UsageError.exit_code
        else MachineError(failed.message)
    )
