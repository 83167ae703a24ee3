"""A line: its deadline, its end, what is no message, and descriptors; and the proof of a secret over it."""

from __future__ import annotations

import os
import socket
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from firelane.errors import FrameError, PeerLostError
from firelane.link.greeting import Challenge, Refused, facts_of
from firelane.link.line import Line
from firelane.link.proof import Secret, accept, admit, answer, greet, refuse


class Word(msgspec.Struct, frozen=True, tag="word"):
    text: str


class Number(msgspec.Struct, frozen=True, tag="number"):
    value: int


@pytest.fixture
def lines():
    one, other = (Line(sock, name) for sock, name in zip(socket.socketpair(), ("one", "two"), strict=True))
    yield one, other
    one.close()
    other.close()


def test_messages_and_bytes_come_in_their_order(lines):
    one, other = lines
    one.send(Word("a"))
    one.send_bytes(b"1234")
    one.send(Number(5))
    assert other.receive(Word) == Word("a")
    assert other.receive_bytes(4) == b"1234"
    assert other.receive_with(Word | Number)[0] == Number(5)


def test_nothing_is_awaited_beyond_the_deadline(lines):
    one, other = lines
    one.deadline_s = time.monotonic() + 0.01
    with pytest.raises(TimeoutError):
        one.receive(Word)
    with pytest.raises(TimeoutError):
        one.send(Word("late"))
    one.deadline_s = None
    other.send(Word("a"))
    assert one.receive(Word) == Word("a")


def test_the_end_is_told_with_the_name_of_the_other_end(lines):
    one, other = lines
    other.close()
    assert one.has_news
    with pytest.raises(PeerLostError, match=r"^one has closed the connection$"):
        one.receive(Word)


def test_whoever_waits_can_be_woken(lines):
    one, _ = lines
    timer = threading.Timer(0.01, one.hang_up)
    timer.start()
    with pytest.raises(PeerLostError):
        one.receive(Word)
    timer.join()


@pytest.mark.parametrize("body", [b"\xc1", b"\x91" * 5000, b"\x82\xa4type\xa6number\xa5value\x01"], ids=len)
def test_what_is_no_message_of_this_kind_is_refused(lines, body):
    one, other = lines
    one.send_bytes(len(body).to_bytes(4, "little") + body)
    with pytest.raises(FrameError, match=r"^two sends what is no message for this end"):
        other.receive(Word)


def test_a_message_over_the_limit_is_refused_before_its_body(lines):
    one, _ = lines
    small = Line(socket.socket(fileno=os.dup(lines[1].fileno())), most_bytes=10)
    one.send_bytes((11).to_bytes(4, "little"))
    with pytest.raises(FrameError, match="over the limit of 10"):
        small.receive(Word)
    small.close()


@pytest.mark.parametrize("is_message", [True, False])
def test_descriptors_come_along_and_of_what_is_no_message_are_closed(lines, is_message):
    one, other = lines
    read, write = os.pipe()
    one.send(Word("a") if is_message else Number(1), [write])
    os.close(write)
    if is_message:
        found, (fd,) = other.receive_with(Word, most_fds=2)
        assert found == Word("a")
        os.write(fd, b"x")
        assert os.read(read, 1) == b"x"
        os.close(fd)
    else:
        with pytest.raises(FrameError):
            other.receive_with(Word, most_fds=2)
    assert os.read(read, 1) == b""  # nobody has it any more
    os.close(read)


OURS = Secret(b"key", 3)


def greeted(lines, theirs, refusal=""):
    """Greet over a line; return what the end that accepts and the one that connects find, or the errors that
    they raise."""
    found = []

    def accepts():
        try:
            guest = admit(lines[0], OURS, "door")
            if refusal:
                raise refuse(lines[0], refusal)
            accept(lines[0], OURS, guest, "welcome")
            found.append(facts_of(guest.hello, str))
        except PeerLostError as error:
            found.append(error)

    thread = threading.Thread(target=accepts)
    thread.start()
    try:
        challenge = lines[1].receive(Challenge)
        assert facts_of(challenge, str) == "door"
        said, _ = answer(lines[1], theirs, greet(lines[1], theirs, challenge, "hello"))
        result = facts_of(said, str)
    except PeerLostError as error:
        result = error
    thread.join()
    return found[0], result


def test_both_ends_of_one_secret_get_the_facts_of_the_other(lines):
    assert greeted(lines, Secret(b"key", 3)) == ("hello", "welcome")


@pytest.mark.parametrize(
    ("theirs", "refusal", "reason"),
    [
        (Secret(b"yek", 3), "", "the keys of the cluster differ"),
        (Secret(b"key", 4), "", "the other end 4"),
        (Secret(b"key", 3), "not today", "not today"),
    ],
    ids=["secret", "protocol", "facts"],
)
def test_a_refusal_is_told_to_both(lines, theirs, refusal, reason):
    for error in greeted(lines, theirs, refusal=refusal):
        assert isinstance(error, PeerLostError)
        assert reason in str(error)
        assert not error.is_passing


def test_an_end_that_accepts_without_the_secret_is_found_out(lines):
    one, other = lines

    def accepts():
        guest = admit(one, Secret(b"key", 3), None)
        accept(one, Secret(b"another", 3), guest, None)

    thread = threading.Thread(target=accepts)
    thread.start()
    nonces = greet(other, Secret(b"key", 3), other.receive(Challenge), None)
    with pytest.raises(PeerLostError, match="keys of the cluster differ"):
        answer(other, Secret(b"key", 3), nonces)
    thread.join()


def test_a_refusal_may_pass(lines):
    lines[0].send(Refused("later", is_passing=True))
    with pytest.raises(PeerLostError, match="later") as refused:
        answer(lines[1], Secret(b"key", 3), bytes(64))
    assert refused.value.is_passing


def test_a_line_says_whether_it_is_encrypted(lines):
    one, other = lines
    assert not one.is_encrypted
    one.encrypt(SimpleNamespace())
    assert (one.is_encrypted, other.is_encrypted) == (True, False)
