from __future__ import annotations

import os
import socket
import threading

import pytest

from firelane.errors import FrameError, PeerLostError
from firelane.link.channel import READ_BYTES, Channel
from firelane.link.framing import encode
from firelane.wire.frames import Abort, Drain, FromEngine, Rejected, ToEngine


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, ToEngine)
    yield channel, theirs
    channel.close()
    theirs.close()


def test_receives_all_that_has_arrived(pair):
    channel, peer = pair
    assert channel.receive() == []
    peer.sendall(encode(Abort([1])) + encode(Drain(2.0)) + encode(Abort([3]))[:5])
    assert channel.receive() == [Abort([1]), Drain(2.0)]
    peer.sendall(encode(Abort([3]))[5:])
    assert channel.receive(None) == [Abort([3])]


def test_waits_no_longer_than_asked(pair):
    channel, _ = pair
    assert channel.receive(0.001) == []


def test_waits_for_a_frame(pair):
    channel, peer = pair
    sender = threading.Timer(0.02, peer.sendall, [encode(Abort([1]))])
    sender.start()
    assert channel.receive(None) == [Abort([1])]
    sender.join()


def test_end_of_stream(pair):
    channel, peer = pair
    peer.close()
    with pytest.raises(PeerLostError):
        channel.receive()
    with pytest.raises(PeerLostError):
        channel.send(Rejected(1, "x" * 10))


def test_the_last_words_come_before_the_end(pair):
    channel, peer = pair
    body = 2 * READ_BYTES - len(encode(Rejected(1, "x" * 70000))) + 70000
    frame = encode(Rejected(1, "x" * body))
    assert len(frame) == 2 * READ_BYTES  # what is read at once ends with the frame
    reader = Channel(channel._sock, FromEngine)
    sender = threading.Thread(target=lambda: (peer.sendall(frame), peer.close()))
    sender.start()
    sender.join()
    assert reader.receive() == [Rejected(1, "x" * body)]
    with pytest.raises(PeerLostError):
        reader.receive()


def test_descriptors_come_with_their_frames_also_where_the_peer_is_slow(pair):
    channel, peer = pair
    reader = Channel(channel._sock, FromEngine, most_fds=2)
    sender, got, came = Channel(peer, FromEngine), [], []
    pipes = [os.pipe() for _ in range(6)]
    for index, (_, write) in enumerate(pipes):
        sender.send(Rejected(index, "x" * 100_000), [write] if index % 2 else ())
        os.close(write)
    while len(got) < len(pipes):
        for frame in reader.receive():
            got.append(frame.id)
            came += [(frame.id, reader.descriptors.popleft())] if frame.id % 2 else []
        sender.push()
    assert (got, [number for number, _ in came]) == ([0, 1, 2, 3, 4, 5], [1, 3, 5])
    for index, fd in came:
        os.write(fd, b"%d" % index)
        os.close(fd)
    assert [os.read(pipes[index][0], 8) for index in (1, 3, 5)] == [b"1", b"3", b"5"]
    for read, _ in pipes:
        os.close(read)


def test_descriptors_that_nobody_took_are_closed(pair):
    channel, peer = pair
    reader, sender = Channel(channel._sock, FromEngine, most_fds=1), Channel(peer, FromEngine)
    read, write = os.pipe()
    sender.send(Rejected(1, "x"), [write])
    assert reader.receive(None) == [Rejected(1, "x")]
    sender.send(Rejected(2, "x" * 1_000_000), [write])
    sender.send(Rejected(3, "x"), [write])
    os.close(write)
    assert sender.unsent_bytes
    sender.close()
    reader.close()
    assert os.read(read, 1) == b""
    os.close(read)


def test_garbage(pair):
    channel, peer = pair
    peer.sendall(b"\3\0\0\0abc")
    with pytest.raises(FrameError):
        channel.receive()


def test_slow_peer_does_not_block_and_loses_nothing(pair):
    channel, peer = pair
    other = Channel(peer, FromEngine)
    frames = [Rejected(i, "x" * 5000) for i in range(200)]
    for frame in frames:
        channel.send(frame)
    got = []
    while len(got) < len(frames):
        got += other.receive()
        channel.flush(0.1)
    assert got == frames


def test_too_slow_peer_blocks_instead_of_eating_memory(pair):
    _, peer = pair
    channel = Channel(peer, FromEngine, max_unsent_bytes=1000)
    other = Channel(pair[0]._sock, FromEngine)
    got = []

    def read():
        while len(got) < 300:
            got.extend(other.receive(1.0))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(300):
        channel.send(Rejected(i, "x" * 5000))
        assert len(channel._unsent) <= 1000
    channel.flush(5.0)
    reader.join()
    assert len(got) == 300
