"""Agents as firelane.nixl has them, in threads, over a library in place of NIXL that copies within this
process: all but NIXL itself, on machines that do not have it."""

from __future__ import annotations

import ctypes
import socket
import threading
from contextlib import suppress
from itertools import count

from firelane.errors import MachineError
from firelane.link.packets import pair
from firelane.nixl.agent import Agent


class CopyingLibrary:
    """The interface of firelane.nixl.library.Library."""

    numbers = count()

    def __init__(self, name):
        self.name = name
        self.registered = {}
        self.peers = set()

    @property
    def metadata(self):
        return f"of {self.name}".encode()

    def register(self, ranges):
        number = next(self.numbers)
        self.registered[number] = list(ranges)
        return number

    def deregister(self, registered):
        del self.registered[registered]

    def attach(self, metadata):
        text = metadata.decode(errors="replace")
        if not text.startswith("of firelane-") or text in self.peers:
            raise MachineError("not metadata, or that of an agent that is attached")
        self.peers.add(text)
        return text

    def begin(self, name, theirs, ours, nbytes):
        assert name in self.peers
        for source, into in zip(theirs.tolist(), ours.tolist(), strict=True):
            self._check(into, nbytes)
            ctypes.memmove(into, source, nbytes)
        return object()

    def is_done(self, transfer):
        return transfer is not None

    def release(self, transfer):
        assert transfer is not None

    def progress(self):
        pass

    def _check(self, address, nbytes):
        ranges = [one for each in self.registered.values() for one in each]
        assert any(start <= address and address + nbytes <= start + size for start, size in ranges)


class ThreadAgents:
    """Agents that are threads of this process, with the methods of HelperAgents. fails: number of the next
    starts that fail."""

    def __init__(self, *, library=CopyingLibrary, fails=0):
        self.library, self.fails, self.starts = library, fails, 0
        self._running = None

    def start(self):
        self.kill()
        self.starts += 1
        if self.fails:
            self.fails -= 1
            raise OSError("no agent can be started here")
        ours, theirs = pair()
        thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        thread.start()
        self._running = theirs, thread
        return ours

    def kill(self):
        if self._running is not None:
            sock, thread = self._running
            self._running = None
            with suppress(OSError):  # it has ended
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()

    def close(self):
        self.kill()

    def _run(self, sock):
        agent = Agent(sock, self.library)
        agent.run()
        agent.close()
