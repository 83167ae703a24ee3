"""Pages copied, sent and received, many in a call, with the checksums of what has arrived."""

from __future__ import annotations

import socket
import time

import numpy as np
from numpy.typing import NDArray

from firelane.errors import PeerLostError

LANES = 32
PRIME = 0x9E3779B97F4A7C15
"""Odd: each step of the mix can be undone, so that a change of one sum always changes the result."""
MASK = (1 << 64) - 1


def checksum(page: NDArray[np.uint8]) -> int:
    """The checksum of a page, contiguous bytes, as page_copy.cpp computes it: fast enough to go with each
    copy; good against accidents, not against malice.

    A page is rows of 32 words of 64 bits, the last one filled up with zeros. Each column is summed, and its
    sums so far are summed again, which tells rows in another order; both, mod 2^64, are mixed one after the
    other.
    """
    row_bytes = LANES * 8
    whole = page.size // row_bytes * row_bytes
    rows = page[:whole].view("<u8").reshape(-1, LANES)
    if whole < page.size:
        last = np.zeros(row_bytes, np.uint8)
        last[: page.size - whole] = page[whole:]
        rows = np.concatenate([rows, last.view("<u8")[None]])
    weights = np.arange(len(rows), 0, -1, dtype=np.uint64)
    sums = np.add.reduce(rows, axis=0), np.add.reduce(rows * weights[:, None], axis=0)
    result = 0
    for digit in np.concatenate(sums).tolist():
        result = (result ^ digit) * PRIME & MASK
        result ^= result >> 32
    return result


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
