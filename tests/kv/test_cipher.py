"""Pages under a cipher: what the network shows, what happens to whoever changes it, and how keys follow each
other."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress

import pytest

from firelane.errors import PeerLostError
from firelane.kv.transfer import cipher
from firelane.kv.transfer.cipher import HEAD_BYTES, RECORD_BYTES, TAG_BYTES, CipherRecords, KeyExchange, Keys
from firelane.kv.transfer.page_copy import PageCopier
from tests.kv.transfer_engines import Engine, assert_same, prompt

KEY = b"of the cluster"
NONCES = bytes(range(64))
PROMPT = prompt(81)


class Network:
    """The way between a source and a reader, in the hands of somebody else. change: of bytes from the source,
    with those before; returns what the reader gets."""

    def __init__(self, change=None):
        self.seen = b""
        self._change = change
        self.source, source_end = socket.socketpair()
        self.reader, reader_end = socket.socketpair()
        self._socks = source_end, reader_end
        ways = (source_end, reader_end, True), (reader_end, source_end, False)
        self._threads = [threading.Thread(target=self._carry, args=way) for way in ways]
        for thread in self._threads:
            thread.start()

    def _carry(self, origin, target, is_changed):
        while data := _received(origin):
            before, self.seen = self.seen, self.seen + data
            _send(target, self._change(data, before) if is_changed and self._change else data)
        for sock in (origin, target):
            _shut(sock)

    def close(self):
        for sock in self._socks:
            _shut(sock)
        for thread in self._threads:
            thread.join()
        for sock in self._socks:
            sock.close()


def _received(sock):
    try:
        return sock.recv(1 << 16)
    except OSError:
        return b""


def _send(sock, data):
    try:
        sock.sendall(data)
    except OSError:
        _shut(sock)


def _shut(sock):
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def engines():
    """A source and a reader over TCP's way."""
    made = [Engine(maps=False, key=KEY, copier=PageCopier()) for _ in range(2)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def network():
    made = []

    def through(*change):
        made.append(Network(*change))
        return made[0]

    yield through
    for one in made:
        one.close()


def attach(network, there, here, source=True, reader=True):
    there.transfer.export(network.source, ciphers=source)
    return here.transfer.attach(network.reader, ciphers=reader)


def records(key=KEY, side="source", nonces=NONCES, ends=None):
    """Both ends of an agreement, this side's first."""
    ours, theirs = ends or (KeyExchange(), KeyExchange())
    other = {"source": "reader", "reader": "source"}[side]
    return ours.records(side, KEY, theirs.share, nonces), theirs.records(other, key, ours.share, nonces)


def sealed(one, data):
    return b"".join(bytes(part) for part in one.sealed(memoryview(data)))


def opened(one, data, nbytes):
    view, left = bytearray(nbytes), memoryview(data)

    def receive_into(into):
        nonlocal left
        if len(left) < len(into):
            raise PeerLostError("it has hung up")
        into[:] = left[: len(into)]
        left = left[len(into) :]

    one.open_into(memoryview(view), receive_into)
    return bytes(view)


@pytest.mark.parametrize("asks", [(True, True), (True, False), (False, True), (False, False)])
def test_pages_are_hidden_where_one_end_asks_for_it(engines, network, asks):
    there, here = engines
    way = network()
    expected, wanted = there.fill(PROMPT), here.wanted(PROMPT)
    settled = here.pull(attach(way, there, here, *asks), wanted)
    assert settled.outcome == "ok"
    assert_same(here.content(wanted), expected)
    hidden = [*(page.tobytes()[:64] for page in expected.values()), *(page.name for page in wanted)]
    assert [part in way.seen for part in hidden] == [not any(asks)] * len(hidden)


@pytest.mark.parametrize("place", [30_000, 100_000], ids=["of an early page", "of a late one"])
def test_a_changed_bit_ends_the_pull_and_no_page_of_it_is_used(engines, network, place):
    there, here = engines
    changes = []

    def change(data, before):
        if len(before) < place <= len(before) + len(data):
            changes.append(place)
            at = place - len(before) - 1
            return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        return data

    way = network(change)
    expected = there.fill(PROMPT)
    peer, wanted = attach(way, there, here), here.wanted(PROMPT)
    settled = here.pull(peer, wanted)
    assert (settled.outcome, settled.nbytes, changes) == ("lost", 0, [place])
    assert here.lost == [(peer, "a record was altered, replayed or left out on its way")]
    assert here.content(wanted) == {}
    assert there.kv.search.lookup(there.kv.chain(b""), PROMPT, 81).num_blocks == len(expected)


def test_a_cut_connection_ends_the_pull(engines, network):
    there, here = engines
    way = network(lambda data, before: data if len(before) < 50_000 else b"")
    there.fill(PROMPT)
    peer, wanted = attach(way, there, here), here.wanted(PROMPT)
    threading.Timer(0.3, way.source.shutdown, [socket.SHUT_RDWR]).start()
    assert here.pull(peer, wanted).outcome == "lost"
    assert here.content(wanted) == {}


def test_keys_of_the_cluster_that_differ_are_named(engines, network):
    there = engines[0]
    here = Engine(maps=False, key=b"of another cluster")
    try:
        with pytest.raises(PeerLostError, match="the keys of the cluster differ"):
            attach(network(), there, here)
    finally:
        here.close()


@pytest.mark.parametrize("asks", [(True, False), (False, True)], ids=["source asks", "reader asks"])
def test_an_end_without_the_package_is_named(engines, network, asks, monkeypatch):
    monkeypatch.setitem(sys.modules, "firelane.kv.transfer.cipher", None)
    with pytest.raises(PeerLostError, match=r"pip install 'firelane\[encryption\]'"):
        attach(network(), *engines, *asks)


def test_a_reader_that_leaves_the_cipher_out_gets_no_pages(engines, network):
    """Because somebody between them has changed what the source asks for."""

    def silent(data, before):
        return data if before else data[:-1] + b"\xc2"  # the last field of Challenge: it does not ask

    with pytest.raises(PeerLostError, match="under a cipher alone"):
        attach(network(silent), *engines, reader=False)


def test_a_share_that_gives_everybody_the_same_key_is_refused():
    with pytest.raises(PeerLostError, match="share of the cipher's key"):
        KeyExchange().records("source", KEY, bytes(32), NONCES)
    with pytest.raises(PeerLostError, match="share of the cipher's key"):
        KeyExchange().records("source", KEY, b"short", NONCES)


@pytest.mark.parametrize("nbytes", [1, 5000, RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES - 7])
def test_bytes_come_in_pieces_of_any_size(nbytes):
    one, other = records()
    text = bytes(index * 7 % 251 for index in range(nbytes))
    came = sealed(one, text)
    assert len(came) == nbytes + -(-nbytes // RECORD_BYTES) * (HEAD_BYTES + TAG_BYTES)
    pieces = [opened(other, came, min(4, nbytes))]
    assert pieces[0] == text[:4]
    again, back = records()
    assert opened(back, sealed(again, text), nbytes) == text


def test_a_message_is_read_in_parts_and_both_ways():
    one, other = records()
    came = sealed(one, b"1234abcdefgh")
    assert (opened(other, came, 4), opened(other, b"", 3), opened(other, b"", 5)) == (
        b"1234",
        b"abc",
        b"defgh",
    )
    assert opened(one, sealed(other, b"answer"), 6) == b"answer"


def changed(record):
    return record[:-1] + bytes([record[-1] ^ 1])


WRONG = {
    "another key": lambda one, _: (records(key=b"other")[1], sealed(one, b"text")),
    "another connection": lambda one, _: (records()[1], sealed(one, b"text")),
    "sent back": lambda one, _: (one, sealed(one, b"text")),
    "left out": lambda one, other: (other, (sealed(one, b"text"), sealed(one, b"text"))[1]),
    "its length": lambda one, other: (other, b"\x03" + sealed(one, b"text")[1:]),
    "its tag": lambda one, other: (other, changed(sealed(one, b"text"))),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_record_that_is_not_the_next_one_is_not_opened(wrong):
    other, data = wrong(*records())
    with pytest.raises(PeerLostError, match="altered, replayed or left out"):
        opened(other, data, 3)


@pytest.mark.parametrize("changes", [{"key": b"other"}, {"nonces": NONCES[::-1]}], ids=["key", "nonces"])
def test_the_key_of_the_cluster_and_the_nonces_are_part_of_the_keys(changes):
    ends = KeyExchange(), KeyExchange()
    (one, same), (_, other) = records(ends=ends), records(ends=ends, **changes)
    came = sealed(one, b"text")
    assert opened(same, came, 4) == b"text"
    with pytest.raises(PeerLostError, match="altered"):
        opened(other, came, 4)


def test_a_replayed_record_is_not_opened():
    one, other = records()
    came = sealed(one, b"text")
    assert opened(other, came, 4) == b"text"
    with pytest.raises(PeerLostError, match="altered, replayed or left out"):
        opened(other, came, 4)


@pytest.mark.parametrize("nbytes", [0, RECORD_BYTES + 1, 0xFFFFFFFF])
def test_a_record_of_a_length_that_there_is_not_is_not_waited_for(nbytes):
    _, other = records()
    with pytest.raises(PeerLostError, match=f"a record of {nbytes} bytes"):
        opened(other, nbytes.to_bytes(4, "little"), 4)


def test_keys_follow_each_other_at_both_ends():
    one, other = Keys(b"s" * 32, 1000), Keys(b"s" * 32, 1000)
    last = None
    ciphers = []
    for index in range(12):
        (seals, nonce), (opens, same) = one.next(300), other.next(300)
        assert opens.decrypt(same, seals.encrypt(nonce, b"text", None), None) == b"text"
        ciphers.append(seals)
        if last is not None and index % 3 == 0:  # 900 bytes under one key
            assert seals is not last
            assert last.encrypt(nonce, b"text", None) != seals.encrypt(nonce, b"text", None)
        last = seals
    assert len({id(each) for each in ciphers}) == 4


def test_pages_come_under_many_keys(engines, network, monkeypatch):
    made = []
    expanded = cipher._expanded
    monkeypatch.setattr(cipher, "ROTATION_BYTES", 20_000)
    monkeypatch.setattr(cipher, "_expanded", lambda *given: made.append(given[1]) or expanded(*given))
    there, here = engines
    expected, wanted = there.fill(PROMPT), here.wanted(PROMPT)
    peer = attach(network(), there, here)
    assert here.pull(peer, wanted).outcome == "ok"
    assert_same(here.content(wanted), expected)
    assert made.count("next") >= 2 * (20 * 9000 // 20_000 - 1)


def test_records_under_a_key_that_was_given_up_are_not_opened():
    secret = b"s" * 32
    one, other = (CipherRecords(Keys(secret, 8), Keys(secret, 8)) for _ in range(2))
    first, second = sealed(one, b"12345678"), sealed(one, b"12345678")
    assert first != second  # the same number, under the next key
    assert opened(other, first, 8) == b"12345678"
    with pytest.raises(PeerLostError, match="altered"):
        opened(other, first, 8)
