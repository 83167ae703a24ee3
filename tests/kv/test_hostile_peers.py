"""Peers that forge, replay or lie: they get no pages, and no page of theirs is used."""

from __future__ import annotations

import os
import socket
import threading

import msgspec
import pytest

from firelane.errors import PeerLostError
from firelane.kv.transfer import peers
from firelane.kv.transfer.exported import TAG_BYTES
from firelane.kv.transfer.handshake import Side, join, welcome
from firelane.kv.transfer.messages import (
    PROTOCOL,
    Find,
    Found,
    Join,
    Joined,
    NixlMemory,
    PageLine,
)
from firelane.link.greeting import Challenge, Hello, Refused, Welcome, raw
from firelane.link.proof import Secret, accept, admit, greet, proof
from tests.kv.transfer_engines import BLOCK, PAGES, Engine, prompt

KEY = b"of the cluster"
NONCE = bytes(32)


@pytest.fixture
def engine():
    made = Engine(maps=False, key=KEY)
    yield made
    made.close()


@pytest.fixture
def lines():
    """Both ends of a connection; the test closes what nobody took over."""
    one, other = (PageLine(sock) for sock in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def side(engine, key=KEY):
    return Side("forger", engine.pool, key)


def answered(line, act):
    """Thread that does `act` at the other end, as a peer that says what the test wants."""
    thread = threading.Thread(target=act, args=(line,))
    thread.start()
    return thread


def attach(engine, act):
    """The engine as the reader of a source that does this."""
    ours, theirs = socket.socketpair()
    line = PageLine(theirs)
    thread = answered(line, act)
    try:
        return engine.transfer.attach(ours)
    finally:
        thread.join()


class Recorded:
    """A line whose messages are kept."""

    carries_descriptors = False

    def __init__(self, line):
        self._line, self.sent = line, []

    def send(self, message, fds=()):
        self.sent.append(message)
        self._line.send(message, fds)

    def receive(self, kind):
        return self._line.receive(kind)

    def receive_with(self, kind, most_fds=0):
        return self._line.receive_with(kind, most_fds)


def offered(engine):
    """A connection to the engine as a source."""
    ours, theirs = socket.socketpair()
    engine.transfer.export(theirs)
    return PageLine(ours)


def test_what_a_reader_has_said_is_of_no_use_on_another_connection(engine):
    genuine, line = Recorded(offered(engine)), offered(engine)
    join(genuine, side(engine), maps=False)
    line.receive(Challenge)
    line.send(genuine.sent[0])
    assert "keys of the cluster differ" in line.receive(Refused).reason
    line.close()
    genuine._line.close()


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\xa1\xdb", b"\x92\xa1\xdb\x01", b"\x91" * 5000], ids=lambda b: b[:8].hex()
)
def test_what_is_no_message_ends_the_connection(lines, body):
    one, other = lines
    one.send_bytes(memoryview(len(body).to_bytes(4, "little") + body))
    with pytest.raises(PeerLostError, match="sends what is no message"):
        other.receive(Find)


CHANGES = {"engine_id": "other", "identity": "x", "sizes": [1], "share": b""}


@pytest.mark.parametrize("changes", [{name: value} for name, value in CHANGES.items()], ids=CHANGES)
def test_what_was_changed_on_the_way_is_refused(engine, changes):
    line, pool = offered(engine), engine.pool
    challenge = line.receive(Challenge)
    true = Join(
        engine_id="peer",
        identity=pool.identity,
        layout_id=pool.layout_id,
        sizes=pool.sizes,
        maps=False,
        nixl=False,
        share=bytes(32),
    )
    said = proof(KEY, "hello", challenge.nonce + NONCE, bytes(raw(true)))
    facts = raw(msgspec.structs.replace(true, **changes))
    line.send(Hello(protocol=PROTOCOL, version="1", facts=facts, nonce=NONCE, proof=said))
    assert "keys of the cluster differ" in line.receive(Refused).reason
    line.close()


def test_what_a_source_has_said_is_of_no_use_on_another_connection(engine, lines):
    source, reader = Recorded(lines[0]), lines[1]
    thread = answered(reader, lambda line: join(line, side(engine), maps=False))
    welcome(source, side(engine))
    thread.join()
    challenge, welcomed = source.sent

    def replay(line):
        line.send(challenge)
        line.receive(Hello)
        line.send(welcomed)
        line.close()

    with pytest.raises(PeerLostError, match="keys of the cluster differ"):
        attach(engine, replay)


@pytest.mark.parametrize(
    "nixl",
    [None, NixlMemory(b"other", [1, 2]), NixlMemory(b"metadata", [1, 3])],
    ids=["none", "agent", "place"],
)
def test_memory_for_nixl_that_was_changed_on_the_way_is_refused(engine, nixl):
    """Whoever could change it would have the reader's agent connect to another one."""

    def changed(line):
        guest = admit(line, Secret(KEY, PROTOCOL), False)
        true = Joined(engine_id="peer", counts=[PAGES], maps=False, nixl=NixlMemory(b"metadata", [1, 2]))
        said = proof(KEY, "welcome", guest.nonces, bytes(raw(true)))
        line.send(Welcome(raw(msgspec.structs.replace(true, nixl=nixl)), said))
        line.close()

    with pytest.raises(PeerLostError, match="keys of the cluster differ"):
        attach(engine, changed)


def test_a_reader_of_another_version_is_refused(engine):
    line = offered(engine)
    greet(line, Secret(KEY, PROTOCOL + 1), line.receive(Challenge), None)
    assert f"the other end {PROTOCOL + 1} " in line.receive(Refused).reason
    line.close()


@pytest.mark.parametrize("nbytes", [PAGES * 9000 - 1, PAGES * 9000], ids=["too small", "not sealed"])
def test_memory_that_could_be_cut_short_is_not_mapped(nbytes):
    engine = Engine(maps=True)

    def speak(line):
        secret = Secret(b"", PROTOCOL)
        guest = admit(line, secret, False)
        fds = [os.memfd_create(name) for name in ("pages", "tags")]
        os.ftruncate(fds[0], nbytes)
        os.ftruncate(fds[1], PAGES * TAG_BYTES)
        facts = Joined(engine_id="peer", counts=[PAGES], maps=True, nixl=None)
        accept(line, secret, guest, facts, tuple(fds))
        for fd in fds:
            os.close(fd)
        line.close()

    try:
        with pytest.raises(PeerLostError, match="smaller than it says, or could be cut short"):
            attach(engine, speak)
    finally:
        engine.close()


def served(engine):
    """A reader that has proven its key, and has had an answer."""
    line = offered(engine)
    join(line, side(engine), maps=False)
    assert is_served(line)
    return line


def is_served(line):
    line.send(Find([(0, b"")]))
    return line.receive(Found).pages == [-1]


def test_connections_that_say_nothing_keep_no_reader_out(engine, monkeypatch):
    monkeypatch.setattr(peers, "MOST_SOURCES", 3)
    first, *silent = served(engine), offered(engine), offered(engine)
    for line in silent:
        line.receive(Challenge)
    others = [served(engine), served(engine)]  # in place of both that are silent
    for line in silent:
        with pytest.raises(PeerLostError):
            line.receive(Welcome)
    late = offered(engine)  # all three have the key: there is room for no other
    with pytest.raises(PeerLostError):
        late.receive(Challenge)
    assert all(is_served(line) for line in (first, *others))
    for line in (first, late, *silent, *others):
        line.close()


LIES = {
    "no such page": lambda wanted: Found([PAGES] * wanted, [1] * wanted, [1] * wanted),
    "too few": lambda wanted: Found([0] * (wanted - 1), [1] * wanted, [1] * wanted),
    "too many": lambda wanted: Found([0] * (wanted + 1), [1] * (wanted + 1), [1] * (wanted + 1)),
    "no answer": lambda wanted: Find([(0, b"")] * wanted),
    "nothing behind it": lambda wanted: Found([0] * wanted, [1] * wanted, [1] * wanted),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_answer_that_lies_gives_no_page(engine, lie):
    def speak(line):
        welcome(line, side(engine))
        found = line.receive(Find)
        line.send(lie(len(found.wanted)))
        line.close()

    ours, theirs = socket.socketpair()
    thread = answered(PageLine(theirs), speak)
    peer = engine.transfer.attach(ours)
    wanted = engine.wanted(prompt(4 * BLOCK + 1))
    settled = engine.pull(peer, wanted)
    thread.join()
    assert (settled.outcome, any(settled.arrived)) == ("lost", False)
    assert engine.content(wanted) == {}


def test_pages_that_are_asked_for_in_no_group_are_not_there(engine):
    engine.fill(prompt(16))
    line = offered(engine)
    join(line, side(engine), maps=False)
    line.send(Find([(7, bytes(16)), (-1, bytes(16)), (0, b"x" * 1000), (0, b"")]))
    assert line.receive(Found).pages == [-1] * 4
    line.close()
