"""One peer's memories, read into one staging memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections import deque
from typing import Any

import numpy as np

from firelane.errors import MachineError, PeerLostError
from firelane.link.packets import send
from firelane.nixl.library import Library
from firelane.nixl.messages import Attach, Done, Items, Message, ReadItems, TransferFailed, receive
from firelane.nixl.peers import Peers


class Session:
    """Owns the socket, and the staging memory: what is read there is checked by the engine, which copies it
    to where it belongs."""

    def __init__(self, library: Library, peers: Peers, sock: socket.socket, fd: int, nbytes: int) -> None:
        """fd: of the staging memory. Raises OSError."""
        self._library, self._peers, self._sock = library, peers, sock
        self._staging = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        os.close(fd)
        self._base = self._staging.ctypes.data
        self._registered: Any = None
        self._peer, self._addresses = "", list[int]()
        self._steps: deque[tuple[Items, bool]] = deque()
        """With whether a step is the last of its Read."""
        self._transfer: Any = None

    @property
    def is_reading(self) -> bool:
        return bool(self._steps)

    def fileno(self) -> int:
        return self._sock.fileno()

    def obey(self) -> bool:
        """One message of the engine; False where it has hung up."""
        try:
            message, _ = receive(self._sock)
        except PeerLostError:
            return False
        if isinstance(message, Attach):
            self._attach(message)
        elif isinstance(message, ReadItems):
            last = len(message.steps) - 1
            self._steps.extend((step, number == last) for number, step in enumerate(message.steps))
        return True

    def progress(self) -> bool:
        """Whether something has ended."""
        if not self._steps:
            return False
        try:
            if not self._step(self._steps[0][0]):
                return False
        except MachineError as error:
            self._steps.clear()
            self._peers.fail(self._peer)
            with contextlib.suppress(MachineError):
                self._release()
            self._tell(TransferFailed(str(error)))
            return True
        if self._steps.popleft()[1]:
            self._tell(Done())
        return True

    def close(self) -> None:
        """Hang up. The staging memory has to stay until `has_ended`."""
        self._sock.close()
        self._steps.clear()

    def has_ended(self) -> bool:
        """Whether nothing is written to the staging memory any more, which then is given back."""
        try:
            if self._transfer is not None and not self._library.is_done(self._transfer):
                return False
        except MachineError:
            pass  # an end, too
        with contextlib.suppress(MachineError):
            self._release()
            if self._registered is not None:
                self._library.deregister(self._registered)
        self._registered = None
        return True

    def _attach(self, message: Attach) -> None:
        try:
            self._registered = self._library.register([(self._base, self._staging.nbytes)])
            self._peer = self._peers.attach(message.metadata)
            self._addresses = message.addresses
        except MachineError as error:
            self._tell(TransferFailed(str(error)))
        else:
            self._tell(Done())

    def _step(self, items: Items) -> bool:
        """Whether it is all there."""
        if self._transfer is None:
            memory, nbytes, numbers, place = items
            theirs = self._addresses[memory] + np.array(numbers, np.uint64) * np.uint64(nbytes)
            ours = self._base + place + np.arange(len(numbers), dtype=np.uint64) * np.uint64(nbytes)
            self._transfer = self._library.begin(self._peer, theirs, ours, nbytes)
        if not self._library.is_done(self._transfer):
            return False
        self._release()
        return True

    def _release(self) -> None:
        if self._transfer is not None:
            transfer, self._transfer = self._transfer, None
            self._library.release(transfer)

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(PeerLostError):  # its end is the next message
            send(self._sock, message)
