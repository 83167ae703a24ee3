"""Pages copied, sent and received, many in a call, with the checksums of what has arrived."""

from __future__ import annotations

import socket
import time

import numpy as np
from numpy.typing import NDArray

from firelane.errors import PeerLostError
from firelane.kv.transfer.checksum import checksum

Numbers = NDArray[np.int64]
"""Numbers of pages, in the order in which they travel."""
Sums = NDArray[np.uint64]
"""Checksums, one for each page."""


class PageCopier:
    """Copies in Python, a page at a time. Pages are uint8 [num_pages, page_bytes], rows contiguous. Deadlines
    are of time.monotonic(); after TimeoutError some pages have come and some have not."""

    def checksum(self, page: NDArray[np.uint8]) -> int:
        return checksum(page)

    def copy(
        self,
        source: NDArray[np.uint8],
        numbers: Numbers,
        into: NDArray[np.uint8],
        places: Numbers,
        deadline_s: float,
    ) -> Sums:
        """Pages `numbers` of source, written to `places`. Raises TimeoutError."""
        for number, place in zip(numbers, places, strict=True):
            _left_s(deadline_s)
            into[place] = source[number]
        return self._sums(into, places)

    def send(
        self, sock: socket.socket, pages: NDArray[np.uint8], numbers: Numbers, deadline_s: float
    ) -> None:
        """Raises PeerLostError, TimeoutError, OSError."""
        for number in numbers:
            left = pages[number].data
            while left:
                sock.settimeout(_left_s(deadline_s))
                left = left[sock.send(left) :]

    def receive(
        self, sock: socket.socket, pages: NDArray[np.uint8], places: Numbers, deadline_s: float
    ) -> Sums:
        """Raises as send()."""
        for place in places:
            left = pages[place].data
            while left:
                sock.settimeout(_left_s(deadline_s))
                count = sock.recv_into(left)
                if not count:
                    raise PeerLostError("it has closed the connection")
                left = left[count:]
        return self._sums(pages, places)

    def _sums(self, pages: NDArray[np.uint8], places: Numbers) -> Sums:
        return np.array([self.checksum(pages[place]) for place in places], np.uint64)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
