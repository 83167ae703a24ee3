"""Frames between a worker and its process."""

from __future__ import annotations

import socket

import pytest

from firelane.child_process.worker import OverrunError, ReplyReader, framed, receive


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
def test_answers_come_in_pieces(size: int) -> None:
    frame, answer = framed(b"some text"), ReplyReader(9)
    for start in range(0, len(frame), size):
        assert not answer.is_whole
        answer.add(frame[start : start + size])
    assert answer.is_whole
    assert answer.take() == b"some text"
    assert not answer.is_whole


def test_answers_that_come_together() -> None:
    answers = ReplyReader(9)
    answers.add(framed(b"first") + framed(b"") + framed(b"third") + b"\x01")
    assert answers.take() == b"first"
    assert answers.is_whole
    assert answers.take() == b""
    assert answers.take() == b"third"
    assert not answers.is_whole
    answers.add(b"\0\0\0x")
    assert answers.take() == b"x"


def test_requests_that_come_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(framed(b"first") + framed(b"second"))
        assert [receive(theirs), receive(theirs)] == [b"first", b"second"]


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b""], ConnectionError),
        ([b"\x05\0", b""], ConnectionError),
        ([framed(b"0123456789")], OverrunError),
        ([b"\xff" * 4], OverrunError),
    ],
)
def test_answers_that_do_not_come(pieces: list[bytes], error: type[Exception]) -> None:
    *first, last = pieces
    answer = ReplyReader(9)
    for piece in first:
        answer.add(piece)
    with pytest.raises(error):
        answer.add(last)


@pytest.mark.parametrize("cut", [0, 3, 4, 9, 10])
def test_requests_come_whole_or_not_at_all(cut: int) -> None:
    ours, theirs = socket.socketpair()
    frame = framed(b"a text")
    with ours, theirs:
        ours.sendall(frame[:cut])
        ours.close()
        assert receive(theirs) == (b"a text" if cut == len(frame) else b"")
