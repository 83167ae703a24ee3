"""Engine processes: started with their config, or ahead of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from firelane import env
from firelane.child_process import Child
from firelane.errors import PeerLostError

if TYPE_CHECKING:
    from firelane.engine_config import EngineConfig

MODULE = "firelane.engine"
Sockets = Mapping[str, socket.socket]
"""Further sockets of an engine, as in passing.SOCKETS."""
StartEngine = Callable[["EngineConfig", Sockets], tuple[Child, socket.socket]]


def start_engine(config: EngineConfig, sockets: Sockets) -> tuple[Child, socket.socket]:
    """A new engine, which leads a process group: Ctrl-C reaches the gateway alone, which then drains the
    engine. Returns the gateway's end of its connection, too. Raises OSError where the system makes no
    process."""
    words = [MODULE, f"role={config.role}", f"model={config.model_dir.name}"]  # for people who list processes
    started = Child.connected(words, _environ(config), leads_group=True)
    return _configured(started, config, sockets)


class EngineAhead:
    """The process of a server's first engine, which starts while the server still reads its options: it has
    its interpreter and first modules when it gets its config."""

    def __init__(self) -> None:
        self._environ = env.for_engine(stores=False, hosts=False)
        self._config: EngineConfig | None = None
        self._started: tuple[Child, socket.socket] | None = None
        with contextlib.suppress(OSError):  # the engine's own start tells it
            self._started = Child.connected([MODULE], self._environ, leads_group=True)

    def configure(self, config: EngineConfig) -> None:
        """Have it load now, as an engine that needs this config and no further sockets."""
        if self._environ != _environ(config):
            self.close()
        elif self._started is not None:
            self._config = config
            _configured(self._started, config, {})

    def start(self, config: EngineConfig, sockets: Sockets) -> tuple[Child, socket.socket]:
        """Like `start_engine`, but the first engine is the process that is there, where it was configured so.
        Where it was not, it is ended."""
        if sockets or config != self._config:
            self.close()
        started, self._started = self._started, None
        return start_engine(config, sockets) if started is None else started

    def close(self) -> None:
        """End the process where no engine has come of it; idempotent."""
        if self._started is not None:
            child, ours = self._started
            self._started = None
            ours.close()
            child.end()


def _environ(config: EngineConfig) -> dict[str, str]:
    return env.for_engine(stores=config.reads_store, hosts=config.hosts is not None)


def _configured(
    started: tuple[Child, socket.socket], config: EngineConfig, sockets: Sockets
) -> tuple[Child, socket.socket]:
    from firelane.engine_config.passing import send_config  # here: an EngineAhead starts before it is loaded

    with contextlib.suppress(PeerLostError):  # its end is noticed as that of any engine
        send_config(started[1], config, sockets)
    return started
