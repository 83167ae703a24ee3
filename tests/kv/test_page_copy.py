"""Pages in one native call, beside the plain copy: the same bytes and checksums, at any sizes and places."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from firelane.errors import PeerLostError
from firelane.kv.transfer.native import NativeCopier, page_copier
from firelane.kv.transfer.page_copy import PageCopier, checksum

SIZES = [1, 16, 255, 256, 257, 9000, 300_000]
NEVER_S = 1e6


@pytest.fixture(scope="module")
def native(cache_dir):
    found = page_copier(cache_dir)
    assert isinstance(found, NativeCopier), "these tests need a compiler"
    return found


@pytest.fixture(params=["plain", "native"])
def copier(request, native):
    return PageCopier() if request.param == "plain" else native


def random_pages(count, size, shift=0):
    """shift: of the first byte, from a multiple of 64."""
    memory = np.random.default_rng(size).integers(0, 256, count * size + 128, dtype=np.uint8)
    begin = -memory.ctypes.data % 64 + shift
    return memory[begin : begin + count * size].reshape(count, size)


def soon():
    return time.monotonic() + NEVER_S


@pytest.mark.parametrize("size", SIZES)
def test_checksums_are_the_same(native, size):
    for page in random_pages(3, size):
        assert native.checksum(page) == checksum(page)


@pytest.mark.parametrize("change", [0, 100, 255, 256, 5000, 8999])
def test_any_changed_bit_and_any_two_swapped_rows_change_the_checksum(change):
    (page,) = random_pages(1, 9000)
    before = checksum(page)
    page[change] ^= 1 << change % 8
    assert checksum(page) != before
    page[change] ^= 1 << change % 8
    page[:256], page[512:768] = page[512:768].copy(), page[:256].copy()
    assert checksum(page) != before


@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize("size", SIZES)
def test_copies_are_the_source(copier, size, shift):
    source, into = random_pages(7, size), np.zeros_like(random_pages(9, size, shift))
    into = random_pages(9, size, shift)
    into[:] = 0
    numbers, places = np.array([6, 0, 3, 3]), np.array([1, 8, 0, 5])
    sums = copier.copy(source, numbers, into, places, soon())
    assert np.array_equal(into[places], source[numbers])
    assert not into[[2, 3, 4, 6, 7]].any()
    assert sums.tolist() == [checksum(source[number]) for number in numbers]


@pytest.mark.parametrize("size", SIZES)
def test_pages_sent_are_pages_received(copier, native, size):
    """Each receiver understands each sender, more pages than one call of the system takes among them."""
    count = 600 if size < 300 else 12
    source, into = random_pages(count, size), np.zeros((count, size), np.uint8)
    numbers = np.random.default_rng(1).permutation(count)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sender = threading.Thread(target=lambda: native.send(theirs, source, numbers, soon()))
        sender.start()
        sums = copier.receive(ours, into, numbers[::-1].copy(), soon())
        sender.join()
    assert np.array_equal(into[numbers[::-1]], source[numbers])
    assert sums.tolist() == [checksum(source[number]) for number in numbers]


def test_what_takes_too_long_is_late(copier):
    pages, numbers = random_pages(64, 9000), np.arange(64)
    past_s = time.monotonic() - 1
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(TimeoutError):
            copier.copy(pages, numbers, pages.copy(), numbers, past_s)
        with pytest.raises(TimeoutError):
            copier.receive(ours, pages, numbers, time.monotonic() + 0.01)
        with pytest.raises(TimeoutError):
            copier.send(ours, pages, numbers, time.monotonic() + 0.01)


def test_a_peer_that_hangs_up_is_told_of(copier):
    pages, numbers = random_pages(4, 9000), np.arange(4)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"half of a page")
        theirs.close()
        with pytest.raises(PeerLostError):
            copier.receive(ours, pages, numbers, soon())
        with pytest.raises(OSError):
            copier.send(ours, pages, numbers, soon())


def test_no_pages_are_no_work(copier):
    pages, none = random_pages(4, 16), np.array([], np.int64)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        copier.send(ours, pages, none, soon())
        assert copier.receive(theirs, pages, none, soon()).size == 0
        assert copier.copy(pages, none, pages, none, soon()).size == 0
