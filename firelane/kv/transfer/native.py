"""The compiled copy of pages (csrc/page_copy.cpp): built once for a machine, or absent where there is no
compiler."""

from __future__ import annotations

import ctypes as ct
import functools
import logging
import os
import socket
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane import env
from firelane.errors import CacheError, CompilerError, PeerLostError
from firelane.kv.transfer.page_copy import Numbers, PageCopier, Sums
from firelane.native.library import address, build_library, declared

SOURCE = Path(__file__).parent.parent / "csrc" / "page_copy.cpp"
LATE, HUNG_UP = -1, -2
"""Results of a call; 0: done, above: errno."""
log = logging.getLogger(__name__)


class NativeCopier(PageCopier):
    """Compiled code. One pass over the bytes and one call for all pages, during which the GIL
    is released."""

    __slots__ = ("_checksum", "_copy", "_receive", "_send")

    def __init__(self, library: Path) -> None:
        functions = ct.CDLL(str(library))
        pointer, size, real = ct.c_void_p, ct.c_size_t, ct.c_double
        sizes = size, size, real
        self._checksum = declared(functions.firelane_checksum, ct.c_uint64, pointer, size)
        self._copy = declared(functions.firelane_copy_pages, ct.c_int, *(pointer,) * 5, *sizes)
        self._send = declared(functions.firelane_send_pages, ct.c_int, ct.c_int, pointer, pointer, *sizes)
        self._receive = declared(
            functions.firelane_receive_pages, ct.c_int, ct.c_int, *(pointer,) * 3, *sizes
        )

    def checksum(self, page: NDArray[np.uint8]) -> int:
        return self._checksum(address(page), page.nbytes)

    def copy(
        self,
        source: NDArray[np.uint8],
        numbers: Numbers,
        into: NDArray[np.uint8],
        places: Numbers,
        deadline_s: float,
    ) -> Sums:
        _check(source, numbers)
        _check(into, places)
        assert len(numbers) == len(places)
        assert source.shape[1] == into.shape[1]
        sums = np.empty(len(numbers), np.uint64)
        _raise_for(
            self._copy(
                address(source),
                address(numbers),
                address(into),
                address(places),
                address(sums),
                len(numbers),
                source.shape[1],
                deadline_s - time.monotonic(),
            )
        )
        return sums

    def send(
        self, sock: socket.socket, pages: NDArray[np.uint8], numbers: Numbers, deadline_s: float
    ) -> None:
        _check(pages, numbers)
        shape = len(numbers), pages.shape[1]
        left_s = deadline_s - time.monotonic()
        _raise_for(self._send(sock.fileno(), address(pages), address(numbers), *shape, left_s))

    def receive(
        self, sock: socket.socket, pages: NDArray[np.uint8], places: Numbers, deadline_s: float
    ) -> Sums:
        _check(pages, places)
        sums = np.empty(len(places), np.uint64)
        shape = len(places), pages.shape[1]
        left_s = deadline_s - time.monotonic()
        _raise_for(
            self._receive(sock.fileno(), address(pages), address(places), address(sums), *shape, left_s)
        )
        return sums


def build(settings: env.Environment, cache_dir: Path) -> NativeCopier:
    """Compile, or find it compiled. Raises CompilerError, CacheError, UsageError, OSError."""
    return NativeCopier(build_library("the copy of pages", [SOURCE], settings, cache_dir))


@functools.cache
def page_copier(cache_dir: Path) -> PageCopier:
    """For this machine; the plain one where it cannot be compiled or kept."""
    try:
        return build(env.read(), cache_dir)
    except (CompilerError, CacheError, OSError) as error:
        log.info("pages are copied without compiled code: %s", error)
        return PageCopier()


def _check(pages: NDArray[np.uint8], numbers: Numbers) -> None:
    assert numbers.dtype == np.int64
    assert not len(numbers) or 0 <= numbers.min() <= numbers.max() < len(pages)


def _raise_for(result: int) -> None:
    if result == LATE:
        raise TimeoutError
    if result == HUNG_UP:
        raise PeerLostError("it has closed the connection")
    if result:
        raise OSError(result, os.strerror(result))
