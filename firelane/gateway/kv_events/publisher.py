"""A publisher of one engine's batches over ZeroMQ, in a thread of its own.

PUB     (topic, number of the batch as 8 bytes big-endian, payload)
ROUTER  a request is the first number that is wanted; answers are (number, payload), the last one (-1, "")
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

import zmq

from firelane.errors import UsageError
from firelane.gateway.kv_events.config import OPTION, KvEventsConfig, offset_port

log = logging.getLogger(__name__)
Encode = Callable[[], bytes]
"""Makes a payload; called in the publisher's thread."""
NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
LAST_WORDS_MS = 500
"""For batches that are on their way when the publisher ends."""


class ZmqPublisher:
    """Owns its sockets and its thread. Numbers start at 0 and are given when a batch is handed in: one that
    finds no room in the queue is lost, and subscribers see the gap."""

    def __init__(self, config: KvEventsConfig, number: int = 0) -> None:
        """number: of the engine. Raises UsageError where an endpoint cannot be used."""
        self._topic = config.topic.encode()
        self._most_waiting = config.max_queue_size
        self._waiting: deque[tuple[int, Encode]] = deque()
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._next = 0
        self._is_full = self._is_closing = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._pub = self._open_pub(config, number)
            self._replay = self._open_replay(config, number)
        except UsageError:
            self._context.destroy(linger=0)
            raise
        self._wake_fd, self._waker_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"kv-events-{number}", daemon=True)
        self._thread.start()

    def publish(self, encode: Encode) -> None:
        """Hand in a batch. Never waits."""
        number, self._next = self._next, self._next + 1
        if len(self._waiting) >= self._most_waiting:
            if not self._is_full:
                log.warning("kv_events_lost from=%d: %d batches wait already", number, self._most_waiting)
            self._is_full = True
            return
        self._is_full = False
        self._waiting.append((number, encode))
        self._wake()

    def close(self) -> None:
        """Send what waits, and end; idempotent."""
        if not self._is_closing:
            self._is_closing = True
            self._wake()
            self._thread.join()
            os.close(self._wake_fd)
            os.close(self._waker_fd)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is about to look
            os.write(self._waker_fd, b"\0")

    def _open_pub(self, config: KvEventsConfig, number: int) -> zmq.Socket[bytes]:
        pub, endpoint = self._context.socket(zmq.PUB), offset_port(config.endpoint, number)
        pub.set_hwm(config.hwm)
        _open(pub.bind if config.binds else pub.connect, "endpoint", endpoint)
        return pub

    def _open_replay(self, config: KvEventsConfig, number: int) -> zmq.Socket[bytes] | None:
        if config.replay_endpoint is None:
            return None
        router = self._context.socket(zmq.ROUTER)
        _open(router.bind, "replay_endpoint", offset_port(config.replay_endpoint, number))
        return router

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_fd, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while not self._is_closing or self._waiting:
            ready = dict(poller.poll())
            if self._wake_fd in ready:
                os.read(self._wake_fd, 1 << 16)
            self._send_waiting()
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)
        self._context.destroy(linger=LAST_WORDS_MS)

    def _send_waiting(self) -> None:
        while self._waiting:
            number, encode = self._waiting.popleft()
            try:
                payload = encode()
                self._pub.send_multipart((self._topic, _bytes_of(number), payload))
            except Exception:  # the batches behind it are published all the same
                log.exception("kv_events_not_published number=%d", number)
            else:
                self._sent.append((number, payload))

    def _answer(self, router: zmq.Socket[bytes]) -> None:
        """Batches from the number of one request on, as far as they are kept."""
        frames = router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != NUMBER_BYTES:
            log.warning("kv_events_replay_refused frames=%d: send one number of 8 bytes", len(frames))
            return
        who, first = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._sent:
            if number >= first:
                router.send_multipart((who, b"", _bytes_of(number), payload))
        router.send_multipart((who, b"", END, b""))


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def _open(act: Callable[[str], object], name: str, endpoint: str) -> None:
    try:
        act(endpoint)
    except zmq.ZMQError as error:
        why = "another process has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise UsageError(f"{OPTION}: {name} {endpoint}: {why}; give another one") from error
